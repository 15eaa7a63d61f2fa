import "./style/tokens.css";
import "./style/base.css";
import "./style/ui.css";
import "./style/shell.css";
import "./history/history.css";
import "./settings/settings.css";
import "./chat/chat.css";
import "./models/models.css";
import "./engine/engine.css";
import { render } from "preact";
import { App } from "./app";
import { startSession } from "./state/session";
import { listenForShortcuts } from "./state/shortcuts";
import { applyAppearance } from "./state/theme";

applyAppearance();
listenForShortcuts();
void startSession();
render(<App />, document.getElementById("app")!);
