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

export function readDraft(chat: string | null): Draft {
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
  const isEmpty = draft.text === "" && draft.files.length === 0;
  writeStored(() => sessionStorage, nameOf(chat), isEmpty ? null : JSON.stringify(draft));
}
