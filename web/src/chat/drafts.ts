// What stands in the composer of each chat, kept for as long as the tab.
import type { FileRef } from "../api/types";
import { keepsHistory, me } from "../state/session";
import { readStored, writeStored } from "../state/stored";

export interface Draft {
  text: string;
  files: FileRef[];
}

const NOTHING: Draft = { text: "", files: [] };

/** Drafts of another key are another's. */
const nameOf = (chat: string | null) => `puna.draft.${me.value?.name ?? ""}.${chat ?? "new"}`;

/** Drafts of the page as it is, which storage follows with a delay. */
const current = new Map<string, Draft>();
const timers = new Map<string, ReturnType<typeof setTimeout>>();
const SAVE_MS = 250;

export function readDraft(chat: string | null): Draft {
  const known = current.get(nameOf(chat));
  if (known !== undefined) return known;
  try {
    const kept = JSON.parse(
      readStored(() => sessionStorage, nameOf(chat)) ?? "null",
    ) as Partial<Draft> | null;
    if (kept === null || typeof kept.text !== "string") return NOTHING;
    // Without history, files live in the page, which may have been loaded anew.
    const files = keepsHistory.value && Array.isArray(kept.files) ? kept.files : [];
    return { text: kept.text, files };
  } catch {
    return NOTHING;
  }
}

export function writeDraft(chat: string | null, draft: Draft): void {
  const name = nameOf(chat);
  current.set(name, draft);
  clearTimeout(timers.get(name));
  timers.set(
    name,
    setTimeout(() => store(name), SAVE_MS),
  );
}

function store(name: string): void {
  clearTimeout(timers.get(name));
  timers.delete(name);
  const draft = current.get(name) ?? NOTHING;
  const isEmpty = draft.text === "" && draft.files.length === 0;
  writeStored(() => sessionStorage, name, isEmpty ? null : JSON.stringify(draft));
}

// A draft outlives a reload, also one that comes right after the last key.
globalThis.addEventListener?.("pagehide", () => {
  for (const name of [...timers.keys()]) store(name);
});
