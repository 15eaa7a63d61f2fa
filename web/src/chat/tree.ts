// The branches of a chat. Pure: every change returns another tree.
import type { Message } from "../api/types";

export interface Tree {
  readonly byId: ReadonlyMap<string, Message>;
  /** Ids below each message, oldest first; those without a message above are below null. */
  readonly below: ReadonlyMap<string | null, readonly string[]>;
  /** The end of the branch that is shown. */
  readonly leaf: string | null;
}

export const NO_MESSAGES: Tree = { byId: new Map(), below: new Map(), leaf: null };

/** Return the tree of messages in order of creation. A leaf that is not among them is the newest message. */
export function treeOf(messages: readonly Message[], leaf: string | null): Tree {
  const byId = new Map<string, Message>();
  const below = new Map<string | null, string[]>();
  for (const message of messages) {
    if (byId.has(message.id)) continue;
    byId.set(message.id, message);
  }
  for (const message of byId.values()) {
    // A message whose parent is gone still shows.
    const parent = message.parent !== null && byId.has(message.parent) ? message.parent : null;
    const siblings = below.get(parent);
    if (siblings === undefined) below.set(parent, [message.id]);
    else siblings.push(message.id);
  }
  const known = leaf !== null && byId.has(leaf);
  return { byId, below, leaf: known ? leaf : (messages.at(-1)?.id ?? null) };
}

/** Add a message, or replace the one with its id; a new one becomes the leaf unless `stay`. */
export function withMessage(tree: Tree, message: Message, stay = false): Tree {
  const byId = new Map(tree.byId).set(message.id, message);
  if (tree.byId.has(message.id)) return { ...tree, byId };
  const parent = message.parent !== null && tree.byId.has(message.parent) ? message.parent : null;
  const below = new Map(tree.below).set(parent, [...(tree.below.get(parent) ?? []), message.id]);
  return { byId, below, leaf: stay ? tree.leaf : message.id };
}

/** Return the messages from the first one to `leaf`, or to the tree's own. */
export function pathOf(tree: Tree, leaf: string | null = tree.leaf): Message[] {
  const path: Message[] = [];
  const seen = new Set<string>();
  let at = leaf;
  while (at !== null && !seen.has(at)) {
    const message = tree.byId.get(at);
    if (message === undefined) break;
    seen.add(at);
    path.push(message);
    at = message.parent;
  }
  return path.reverse();
}

/** Return the ids of the messages with the same parent, the message's own included. */
export function siblingsOf(tree: Tree, id: string): readonly string[] {
  const parent = tree.byId.get(id)?.parent ?? null;
  return tree.below.get(parent !== null && tree.byId.has(parent) ? parent : null) ?? [];
}

/** Return the end of the branch that goes on from a message, by the newest ones below it. */
export function leafFrom(tree: Tree, id: string): string {
  let leaf = id;
  const seen = new Set<string>([id]);
  for (;;) {
    const next = tree.below.get(leaf)?.at(-1);
    if (next === undefined || seen.has(next)) return leaf;
    seen.add(next);
    leaf = next;
  }
}

/** Show the branch that a message is on, to its end. */
export function showing(tree: Tree, id: string): Tree {
  if (!tree.byId.has(id)) return tree;
  // Whoever is on the branch already stays where it ends.
  if (pathOf(tree).some((message) => message.id === id)) return tree;
  return { ...tree, leaf: leafFrom(tree, id) };
}

/** Show the branch beside the one that a message is on: `step` is 1 or -1. */
export function beside(tree: Tree, id: string, step: number): Tree {
  const siblings = siblingsOf(tree, id);
  const next = siblings[siblings.indexOf(id) + step];
  return next === undefined ? tree : { ...tree, leaf: leafFrom(tree, next) };
}

/** Return the tree with a chat that was read again, at the branch that is shown here if it is still there. */
export function refreshed(tree: Tree, messages: readonly Message[], leaf: string | null): Tree {
  const next = treeOf(messages, leaf);
  const before = tree.leaf !== null && next.byId.has(tree.leaf) ? leafFrom(next, tree.leaf) : next.leaf;
  return { ...next, leaf: before };
}
