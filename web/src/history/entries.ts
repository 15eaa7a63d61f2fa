import { inOrder } from "../api/tab_chats";
import type { ChatEntry, ChatHead } from "../api/types";
import { period } from "../ui/format";

export interface Section {
  title: string;
  chats: ChatEntry[];
}

/** Return `list` with the next page of it, whose chats may have moved since. */
export function withPage(list: ChatEntry[], page: ChatEntry[]): ChatEntry[] {
  const news = new Map(page.map((chat) => [chat.id, chat]));
  return [...list.filter((chat) => !news.has(chat.id)), ...page];
}

/** Return `list` with a chat that is new or has changed, where it belongs. */
export function withHead(list: ChatEntry[], head: ChatHead): ChatEntry[] {
  const before = list.find((chat) => chat.id === head.id);
  const rest = list.filter((chat) => chat.id !== head.id);
  const entry = { ...head, snippet: before?.snippet };
  const at = rest.findIndex((chat) => inOrder(entry, chat) <= 0);
  return at < 0 ? [...rest, entry] : [...rest.slice(0, at), entry, ...rest.slice(at)];
}

export const without = (list: ChatEntry[], id: string): ChatEntry[] => list.filter((chat) => chat.id !== id);

/** Whether a chat belongs in a list of this folder and tag. */
export const isIn = (head: ChatHead, folder: string, tag: string): boolean =>
  (folder === "" || head.folder === folder) && (tag === "" || head.tags.includes(tag));

/** Return the chats under headings: pinned, then by time. */
export function sections(list: ChatEntry[], now: number): Section[] {
  const found = new Map<string, ChatEntry[]>();
  for (const chat of list) {
    const title = chat.pinned ? "Pinned" : period(chat.updated, now);
    const chats = found.get(title);
    if (chats === undefined) found.set(title, [chat]);
    else chats.push(chat);
  }
  return [...found].map(([title, chats]) => ({ title, chats }));
}

/** Return the tags of a comma-separated text, each once. */
export const tagsIn = (text: string): string[] => [
  ...new Set(
    text
      .split(",")
      .map((tag) => tag.trim().replace(/^#/, ""))
      .filter((tag) => tag !== ""),
  ),
];
