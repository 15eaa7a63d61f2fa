import { batch, effect, signal } from "@preact/signals";
import { chats } from "../api/chats";
import { isAbort, messageOf } from "../api/client";
import { listRuns } from "../api/runs";
import type { ChatEntry, ChatHead, Counted } from "../api/types";
import { keepsHistory, needsKey, reachable } from "../state/session";
import { isIn, withHead, without, withPage } from "./entries";

export const entries = signal<ChatEntry[]>([]);
export const folders = signal<Counted[]>([]);
export const tags = signal<Counted[]>([]);
export const search = signal("");
export const folder = signal("");
export const tag = signal("");
/** Whether there are more chats than are listed. */
export const hasMore = signal(false);
export const isLoading = signal(true);
export const listError = signal<string | null>(null);
/** Chats with an answer under way. */
export const answering = signal<ReadonlySet<string>>(new Set());

let cursor: string | null = null;
let current = new AbortController();

// Other tabs of this browser show the same chats.
const others = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("puna.chats");

/** List chats anew, as the search and the filters want them. */
export async function reload(): Promise<void> {
  current.abort();
  current = new AbortController();
  cursor = null;
  await load(true);
}

/** Append the next chats. */
export async function loadMore(): Promise<void> {
  if (isLoading.value || !hasMore.value) return;
  await load(false);
}

async function load(anew: boolean): Promise<void> {
  const { signal } = current;
  isLoading.value = true;
  try {
    const page = await chats().list(
      {
        query: search.value.trim(),
        folder: folder.value,
        tag: tag.value,
        cursor: cursor ?? undefined,
        // What was scrolled to stays when the list is loaded again.
        limit: anew ? Math.min(200, Math.max(50, entries.value.length)) : 50,
      },
      signal,
    );
    if (signal.aborted) return;
    batch(() => {
      entries.value = anew ? page.chats : withPage(entries.value, page.chats);
      folders.value = page.folders;
      tags.value = page.tags;
      cursor = page.cursor;
      hasMore.value = page.cursor !== null;
      listError.value = null;
      isLoading.value = false;
    });
  } catch (error) {
    if (signal.aborted || isAbort(error)) return;
    batch(() => {
      listError.value = messageOf(error);
      isLoading.value = false;
    });
  }
}

/** Take note of a chat that was made or changed here, without asking the server again. */
export function noteChat(head: ChatHead): void {
  const fits = isIn(head, folder.value, tag.value);
  if (search.value.trim() === "") {
    entries.value = fits ? withHead(entries.value, head) : without(entries.value, head.id);
  } else {
    entries.value = entries.value.map((each) => (each.id === head.id ? { ...each, ...head } : each));
  }
  tellOthers();
}

/** Take a chat out of the list that is being deleted; other tabs are told once the server has deleted it. */
export function noteDeleted(id: string): void {
  entries.value = without(entries.value, id);
}

export function noteAnswering(chat: string, isAnswering: boolean): void {
  if (answering.value.has(chat) === isAnswering) return;
  const next = new Set(answering.value);
  if (isAnswering) next.add(chat);
  else next.delete(chat);
  answering.value = next;
}

/** Call `listener` whenever another tab of this browser has changed chats; returns how to end that. */
export function onOtherTabs(listener: () => void): () => void {
  others?.addEventListener("message", listener);
  return () => others?.removeEventListener("message", listener);
}

/** Tell this browser's other tabs that chats have changed. */
export function tellOthers(): void {
  others?.postMessage("changed");
}

async function findAnswering(): Promise<void> {
  try {
    const runs = await listRuns();
    const running = runs.filter((run) => run.state === "running" && run.chat !== null);
    answering.value = new Set(running.map((run) => run.chat!));
  } catch {
    // Only a mark in the list.
  }
}

let stale: ReturnType<typeof setTimeout> | undefined;
let started = false;

/** List the chats, and go on listing them as other tabs and devices change them. */
export function startList(): void {
  if (started) return;
  started = true;
  void reload();
  void findAnswering();
  if (!keepsHistory.value) return;
  const later = () => {
    clearTimeout(stale);
    stale = setTimeout(() => void reload(), 300);
  };
  others?.addEventListener("message", later);
  let couldAsk = true;
  effect(() => {
    const canAsk = reachable.value && !needsKey.value;
    if (canAsk && !couldAsk) later();
    couldAsk = canAsk;
  });
  let left = Date.now();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) left = Date.now();
    else if (Date.now() - left > 30_000) {
      later();
      void findAnswering();
    }
  });
}
