// Lays out a prefix tree: tokens run from left to right, and each branch has a lane of its own.
import type { LivePrefix, LiveSequence } from "../api/types";
import { count, plural } from "../ui/format";
import { rowName } from "./cells";

export interface Bar {
  /** Index of the node. */
  node: number;
  /** Tokens from the beginning of the prompt. */
  begin: number;
  end: number;
  /** Lanes [lane, lane + lanes). */
  lane: number;
  lanes: number;
  depth: number;
}

export interface Icicle {
  /** Parents first. */
  bars: Bar[];
  lanes: number;
  /** Tokens of the longest branch. */
  tokens: number;
}

/**
 * Return the bars of a tree of which parents come first; the branches of a node lie in the order of their tokens'
 * number below, the most first.
 *
 * A sequence that ends at a node with branches takes no lane of its own: it is the node.
 */
export function icicle(nodes: readonly LivePrefix[]): Icicle {
  const children: number[][] = nodes.map(() => []);
  const roots: number[] = [];
  for (const [index, { parent }] of nodes.entries()) (children[parent] ?? roots).push(index);
  const leaves = new Array<number>(nodes.length).fill(0);
  const weight = new Array<number>(nodes.length).fill(0);
  for (let index = nodes.length - 1; index >= 0; index -= 1) {
    const { parent, begin, end } = nodes[index]!;
    leaves[index] = Math.max(1, leaves[index]!);
    weight[index]! += end - begin;
    if (parent >= 0) {
      leaves[parent]! += leaves[index]!;
      weight[parent]! += weight[index]!;
    }
  }
  const heaviestFirst = (a: number, b: number) => weight[b]! - weight[a]! || a - b;
  const bars: Bar[] = [];
  // A stack instead of a recursion: a long conversation is a deep tree.
  const pending: { node: number; lane: number; depth: number }[] = [];
  const push = (found: number[], lane: number, depth: number) => {
    let next = lane;
    const placed = [...found].sort(heaviestFirst).map((node) => {
      const entry = { node, lane: next, depth };
      next += leaves[node]!;
      return entry;
    });
    pending.push(...placed.reverse());
  };
  push(roots, 0, 0);
  for (let entry = pending.pop(); entry !== undefined; entry = pending.pop()) {
    const { node, lane, depth } = entry;
    const { begin, end } = nodes[node]!;
    bars.push({ node, begin, end, lane, lanes: leaves[node]!, depth });
    push(children[node]!, lane, depth + 1);
  }
  return {
    bars,
    lanes: roots.reduce((sum, root) => sum + leaves[root]!, 0),
    tokens: nodes.reduce((most, { end }) => Math.max(most, end), 0),
  };
}

/** Return the bar at a place, in tokens and lanes. */
export function barAt({ bars }: Icicle, token: number, lane: number): Bar | null {
  return (
    bars.find(
      (bar) => bar.begin <= token && token < bar.end && bar.lane <= lane && lane < bar.lane + bar.lanes,
    ) ?? null
  );
}

/** Return the index in `bars` that a key moves to from the one at `at`. */
export function movedBar(
  { bars }: Icicle,
  nodes: readonly LivePrefix[],
  at: number,
  key: string,
): number | null {
  const here = bars[at];
  if (here === undefined) return bars.length > 0 ? 0 : null;
  const index = (node: number) => bars.findIndex((bar) => bar.node === node);
  const clamp = (to: number) => Math.min(bars.length - 1, Math.max(0, to));
  const { parent } = nodes[here.node]!;
  switch (key) {
    case "ArrowLeft":
      return parent < 0 ? at : index(parent);
    case "ArrowRight": {
      const next = bars[at + 1];
      return next !== undefined && nodes[next.node]!.parent === here.node ? at + 1 : at;
    }
    case "ArrowDown": {
      const below = bars.findIndex((bar, to) => to > at && bar.lane >= here.lane + here.lanes);
      return below < 0 ? at : below;
    }
    case "ArrowUp": {
      let above = -1;
      bars.forEach((bar, to) => {
        if (bar.lane < here.lane && bar.depth <= here.depth) above = to;
      });
      return above < 0 ? at : above;
    }
    case "Home":
      return 0;
    case "End":
      return clamp(bars.length - 1);
    default:
      return null;
  }
}

/** Return the nodes that a running sequence goes through. */
export function runningThrough(
  nodes: readonly LivePrefix[],
  sequences: readonly LiveSequence[],
): Set<number> {
  const rows = new Set(sequences.filter(({ state }) => state !== "idle").map(({ row }) => row));
  const found = new Set<number>();
  nodes.forEach((node, index) => {
    if (!node.rows.some((row) => rows.has(row))) return;
    for (let at = index; at >= 0 && !found.has(at); at = nodes[at]!.parent) found.add(at);
  });
  return found;
}

/** Return what a node says, in words. */
export function barText(node: LivePrefix, isRunning: boolean): string {
  const ends =
    node.rows.length > 0
      ? `; ${node.rows.map(rowName).join(", ")} ${node.rows.length === 1 ? "ends" : "end"} here`
      : "";
  return (
    `Tokens ${count(node.begin)}–${count(node.end - 1)}: reused ${plural(node.hits, "time")}${ends}` +
    (isRunning ? "; in use now" : "")
  );
}
