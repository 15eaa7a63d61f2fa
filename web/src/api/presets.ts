import { client } from "./client";
import type { Preset } from "./types";

const path = (name: string) => `api/puna/presets/${encodeURIComponent(name)}`;

/** Return all presets by name. */
export async function getPresets(signal?: AbortSignal): Promise<Record<string, Preset>> {
  return (await client.json<{ presets: Record<string, Preset> }>("api/puna/presets", { signal })).presets;
}

export const putPreset = (name: string, settings: Preset): Promise<void> =>
  client.run(path(name), { method: "PUT", json: { settings } });

export const deletePreset = (name: string): Promise<void> => client.run(path(name), { method: "DELETE" });
