import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { Scope } from "./api/types";
import { ChatView } from "./chat/view";
import { ImportHost } from "./history/import_dialog";
import { HistoryShortcuts } from "./history/sidebar";
import { Boundary } from "./shell/boundary";
import { KeysHost, showKeys } from "./shell/keys";
import { isNarrow, sidebarDrawn, toggleSidebar, uncover } from "./shell/layout";
import { lazy } from "./shell/lazy";
import { newChat, Sidebar } from "./shell/sidebar";
import { SignIn, SignInAgain } from "./shell/sign_in";
import { TopBar } from "./shell/top_bar";
import { sidebarOpen } from "./state/preferences";
import { hashOf } from "./state/route";
import { route } from "./state/router";
import { can, me, needsKey, reachable, refresh, startError } from "./state/session";
import { useShortcut } from "./state/shortcuts";
import { AskHost } from "./ui/ask";
import { Button } from "./ui/button";
import { classes } from "./ui/classes";
import { Empty } from "./ui/empty";
import { Key, Offline } from "./ui/icons";
import { Spinner } from "./ui/progress";
import { ToastHost } from "./ui/toast";
import { TooltipHost } from "./ui/tooltip";

const ModelsView = lazy(async () => (await import("./models/view")).ModelsView);
const EngineView = lazy(async () => (await import("./engine/view")).EngineView);
const SettingsView = lazy(async () => (await import("./settings/view")).SettingsView);

const NEEDS = { chat: "generate", models: "read", engine: "read", settings: null } as const;

function View() {
  const { view, item } = route.value;
  const scope = NEEDS[view];
  if (scope !== null && !can(scope)) return <NotAllowed scope={scope} />;
  if (view === "models") return <ModelsView name={item} />;
  if (view === "engine") return <EngineView />;
  if (view === "settings") return <SettingsView section={item} />;
  return <ChatView id={item} />;
}

function NotAllowed({ scope }: { scope: Scope }) {
  return (
    <>
      <TopBar title="Not allowed" />
      <Empty icon={Key} title="Your key does not cover this">
        This view needs a key with the scope <code>{scope}</code>. Whoever runs the server can make one; sign
        out in the settings to use it.
      </Empty>
    </>
  );
}

function Shell() {
  const main = useRef<HTMLElement>(null);
  const open = isNarrow.value ? sidebarDrawn.value : sidebarOpen.value;
  useShortcut({ keys: "mod+b", label: "Show or hide the sidebar", group: "Everywhere", run: toggleSidebar });
  useShortcut({ keys: "mod+shift+o", label: "New chat", group: "Everywhere", run: newChat });
  useShortcut({ keys: "?", label: "Show this list", group: "Everywhere", run: showKeys });
  useShortcut(
    { keys: "escape", label: "Hide the sidebar", group: "Everywhere", run: uncover },
    isNarrow.value && open,
  );

  // A toggle takes itself away; focus goes on to the one that undoes it, which the bar draws by itself.
  const wasOpen = useRef(open);
  useEffect(() => {
    if (wasOpen.current === open) return;
    wasOpen.current = open;
    if (document.activeElement !== null && document.activeElement !== document.body) return;
    document.querySelector<HTMLElement>(`${open ? "#sidebar" : ".top-bar"} [aria-controls=sidebar]`)?.focus();
  }, [open]);

  // Whoever follows a link with the keyboard goes on in what it led to.
  const { view } = route.value;
  const shown = useRef(view);
  useLayoutEffect(() => {
    if (shown.current === view) return;
    shown.current = view;
    if (view !== "chat") main.current?.focus({ preventScroll: true });
  }, [view]);

  return (
    <div class={classes("shell", !open && "closed")}>
      <button type="button" class="button primary skip" onClick={() => main.current?.focus()}>
        Skip to the content
      </button>
      {can("generate") && <HistoryShortcuts />}
      {open && <Sidebar />}
      {open && isNarrow.value && (
        <button type="button" class="sidebar-backdrop" aria-label="Hide the sidebar" onClick={uncover} />
      )}
      <main class="main" inert={isNarrow.value && open}>
        {!reachable.value && (
          <div class="offline" role="status">
            <Offline size={16} />
            The server cannot be reached. Trying again…
          </div>
        )}
        <section ref={main} id="main" class="view" tabIndex={-1} aria-label="Content">
          <Boundary place={hashOf(route.value.view, route.value.item)}>
            <View />
          </Boundary>
        </section>
      </main>
    </div>
  );
}

function Start() {
  if (startError.value !== null) {
    return (
      <main class="hero-center">
        <Empty
          icon={Offline}
          title="Puna does not answer"
          actions={
            <Button kind="primary" onClick={refresh}>
              Try again
            </Button>
          }
        >
          {startError.value} The page goes on by itself once the server is there.
        </Empty>
      </main>
    );
  }
  return (
    <main class="hero-center faint" aria-busy="true">
      <Spinner size={24} />
      <h1 class="visually-hidden">Puna is starting</h1>
    </main>
  );
}

export function App() {
  const started = me.value !== null;
  return (
    <>
      {started ? <Shell /> : needsKey.value ? <SignIn /> : <Start />}
      {started && needsKey.value && <SignInAgain />}
      <KeysHost />
      <ImportHost />
      <AskHost />
      <ToastHost />
      <TooltipHost />
    </>
  );
}
