// The settings of a chat as the page keeps them with it, and presets.
import type { ChatSettings } from "../api/types";

export type FormatKind = "none" | "json" | "schema" | "grammar" | "regex" | "choice";

export interface Settings {
  model: string;
  /** The model that answers beside it, or "". */
  beside: string;
  system: string;
  options: Record<string, unknown>;
  /** Fields of the request beside the options: keep_alive, cache_prompt, ... */
  fields: Record<string, unknown>;
  format: { kind: FormatKind; text: string };
  /** undefined: as the model does by itself. */
  think: boolean | "low" | "medium" | "high" | undefined;
  /** A JSON list, as it was typed. */
  tools: string;
  usesTools: boolean;
  /** The MCP servers whose tools the model is offered. */
  mcp: string[];
  answers: number;
  /** Messages whose answers are shown side by side. */
  sideBySide: string[];
}

export const NO_SETTINGS: Settings = {
  model: "",
  beside: "",
  system: "",
  options: {},
  fields: {},
  format: { kind: "none", text: "" },
  think: undefined,
  tools: "",
  usesTools: true,
  mcp: [],
  answers: 1,
  sideBySide: [],
};

export const FORMATS: readonly FormatKind[] = ["none", "json", "schema", "grammar", "regex", "choice"];
const LEVELS = [true, false, "low", "medium", "high"];
const MOST_SIDE_BY_SIDE = 200;

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const text = (value: unknown) => (typeof value === "string" ? value : "");

/** Read settings that were kept; what makes no sense is as if it were not there. */
export function settingsOf(kept: ChatSettings): Settings {
  const format = isObject(kept.format) ? kept.format : {};
  const answers = typeof kept.answers === "number" ? Math.round(kept.answers) : 1;
  return {
    model: text(kept.model),
    beside: text(kept.beside),
    system: text(kept.system),
    options: isObject(kept.options) ? kept.options : {},
    fields: isObject(kept.fields) ? kept.fields : {},
    format: {
      kind: FORMATS.includes(format.kind as FormatKind) ? (format.kind as FormatKind) : "none",
      text: text(format.text),
    },
    think: LEVELS.includes(kept.think as boolean) ? (kept.think as Settings["think"]) : undefined,
    tools: text(kept.tools),
    usesTools: kept.usesTools !== false,
    mcp: Array.isArray(kept.mcp) ? kept.mcp.filter((name) => typeof name === "string") : [],
    answers: Math.min(16, Math.max(1, answers || 1)),
    sideBySide: Array.isArray(kept.sideBySide) ? kept.sideBySide.filter((id) => typeof id === "string") : [],
  };
}

/** Return what is kept of settings: only what differs from none. */
export function kept(settings: Settings): ChatSettings {
  const result: ChatSettings = {};
  for (const [name, value] of Object.entries(settings)) {
    const none = NO_SETTINGS[name as keyof Settings];
    if (JSON.stringify(value) !== JSON.stringify(none)) result[name] = value;
  }
  if (settings.sideBySide.length > MOST_SIDE_BY_SIDE) {
    result.sideBySide = settings.sideBySide.slice(-MOST_SIDE_BY_SIDE);
  }
  return result;
}

/** Return what a preset keeps: everything but what belongs to one chat. */
export function presetOf(settings: Settings): ChatSettings {
  const { sideBySide: _, beside: __, ...rest } = kept(settings);
  return rest;
}

/** Return the settings with those of a preset; a preset without a model leaves the model. */
export function withPreset(settings: Settings, preset: ChatSettings): Settings {
  const next = settingsOf(preset);
  return {
    ...next,
    model: next.model || settings.model,
    beside: settings.beside,
    sideBySide: settings.sideBySide,
  };
}

/** Return how many settings differ from the model's own. */
export function countChanges(settings: Settings): number {
  return (
    Object.keys(settings.options).length +
    Object.keys(settings.fields).length +
    Number(settings.system.trim() !== "") +
    Number(settings.format.kind !== "none") +
    Number(settings.think !== undefined) +
    Number(settings.tools.trim() !== "" && settings.usesTools) +
    Number(settings.mcp.length > 0) +
    Number(settings.answers > 1)
  );
}
