// The chats that were opened in this tab; answers under way go on while another is shown.
import { signal } from "@preact/signals";
import { Conversation } from "./conversation";

const MOST = 20;
const opened = new Map<string, Conversation>();
const draft = signal<Conversation | null>(null);

/** Return the chat with this id; null is the one that has not begun. */
export function conversation(id: string | null): Conversation {
  if (id === null) {
    const begun = draft.peek();
    if (begun !== null && begun.id.peek() === null) return begun;
    const next = new Conversation(null);
    draft.value = next;
    return next;
  }
  const known = opened.get(id) ?? (draft.peek()?.id.peek() === id ? draft.peek() : null);
  const found = known ?? new Conversation(id);
  opened.delete(id);
  opened.set(id, found);
  for (const [each, old] of opened) {
    if (opened.size <= MOST) break;
    if (each !== id && !old.isAnswering.peek()) opened.delete(each);
  }
  return found;
}

/** Begin another chat: what was chosen for the last one that was not begun is forgotten. */
export function beginAnew(): void {
  draft.value = null;
}

/** Forget a chat that could not be loaded, so that it is tried again. */
export function forget(id: string): void {
  opened.delete(id);
}
