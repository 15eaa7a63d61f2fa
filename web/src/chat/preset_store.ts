// Presets: on the server, or in this browser where the server keeps nothing.
import { signal } from "@preact/signals";
import { deletePreset, getPresets, putPreset } from "../api/presets";
import type { Preset } from "../api/types";
import { keepsHistory } from "../state/session";
import { stored } from "../state/stored";

export const presets = signal<Record<string, Preset>>({});

const isObject = (value: unknown) => typeof value === "object" && value !== null && !Array.isArray(value);
const inBrowser = stored<Record<string, Preset>>("presets", {}, isObject);

export async function loadPresets(): Promise<void> {
  presets.value = keepsHistory.peek() ? await getPresets() : inBrowser.value;
}

export async function savePreset(name: string, settings: Preset): Promise<void> {
  if (keepsHistory.peek()) await putPreset(name, settings);
  presets.value = { ...presets.value, [name]: settings };
  if (!keepsHistory.peek()) inBrowser.value = presets.value;
}

export async function removePreset(name: string): Promise<void> {
  if (keepsHistory.peek()) await deletePreset(name);
  const { [name]: _, ...rest } = presets.value;
  presets.value = rest;
  if (!keepsHistory.peek()) inBrowser.value = rest;
}
