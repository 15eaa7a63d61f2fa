import { signal } from "@preact/signals";
import { stored } from "../state/stored";

/** Whether the settings of the chat are shown beside it. */
export const panelOpen = stored("chat-panel", false, (value) => typeof value === "boolean");

export type PanelTab = "prompt" | "options" | "format" | "tools";
export const panelTab = signal<PanelTab>("prompt");
