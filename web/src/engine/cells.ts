// Maps the cells of a cache to blocks of a picture. The work grows with runs and blocks, not with cells.
import type { LiveCache, LiveSequence } from "../api/types";
import { count, plural } from "../ui/format";

export type Run = LiveCache["runs"][number];

/** Cells [first, first + count) that the same sequences hold. */
export interface Segment {
  first: number;
  count: number;
  rows: number[];
}

/** More rows than any cache has: places and rows are sorted as one number. */
const ROWS = 1 << 16;

/** Return the cells in use as segments in order, without overlaps. */
export function segmentsOf(runs: readonly Run[]): Segment[] {
  const begins = Float64Array.from(runs, ([row, first]) => first * ROWS + row).sort();
  const ends = Float64Array.from(runs, ([row, first, count]) => (first + count) * ROWS + row).sort();
  const segments: Segment[] = [];
  const holders = new Set<number>();
  let from = 0;
  for (let i = 0, j = 0; j < ends.length; ) {
    const end = Math.floor(ends[j]! / ROWS);
    const begin = i < begins.length ? Math.floor(begins[i]! / ROWS) : Number.POSITIVE_INFINITY;
    // A sequence whose run ends where its next one begins holds cells on both sides: ends come first.
    const at = Math.min(end, begin);
    if (at > from && holders.size > 0) {
      const rows = holders.size > 1 ? [...holders].sort((a, b) => a - b) : [...holders];
      segments.push({ first: from, count: at - from, rows });
    }
    from = at;
    if (end <= begin) holders.delete(ends[j++]! % ROWS);
    else holders.add(begins[i++]! % ROWS);
  }
  return segments;
}

/** How cells are laid out as blocks: `perBlock` cells each, in rows of `columns` blocks of `pitch` pixels. */
export interface Grid {
  perBlock: number;
  pitch: number;
  columns: number;
  rows: number;
  blocks: number;
}

const LARGEST_PITCH = 14;
const LEAST_PITCH = 5;

/** Return the grid with the largest blocks that shows all cells within a width and about a height, in pixels. */
export function gridFor(capacity: number, width: number, height: number): Grid {
  const of = (perBlock: number, pitch: number): Grid => {
    const columns = Math.max(1, Math.floor(width / pitch));
    const blocks = Math.max(1, Math.ceil(capacity / perBlock));
    return { perBlock, pitch, columns, blocks, rows: Math.ceil(blocks / columns) };
  };
  for (let pitch = LARGEST_PITCH; pitch >= LEAST_PITCH; pitch -= 1) {
    const grid = of(1, pitch);
    if (grid.rows * pitch <= height) return grid;
  }
  for (let perBlock = 2; ; perBlock *= 2) {
    for (let pitch = LEAST_PITCH + 2; pitch >= LEAST_PITCH; pitch -= 1) {
      const grid = of(perBlock, pitch);
      if (grid.rows * pitch <= height || grid.blocks === 1) return grid;
    }
  }
}

export interface Blocks {
  /** The row that holds most of a block's cells; -1: none. */
  owner: Int32Array;
  /** The share of a block's cells in use. */
  filled: Float32Array;
  /** The share of a block's cells that several sequences hold. */
  shared: Float32Array;
}

export function blocksOf(segments: readonly Segment[], capacity: number, { perBlock, blocks }: Grid): Blocks {
  const owner = new Int32Array(blocks).fill(-1);
  const most = new Float32Array(blocks);
  const filled = new Float32Array(blocks);
  const shared = new Float32Array(blocks);
  for (const { first, count, rows } of segments) {
    const end = Math.min(first + count, capacity);
    for (let at = Math.floor(first / perBlock); at * perBlock < end; at += 1) {
      const cells = Math.min(end, (at + 1) * perBlock) - Math.max(first, at * perBlock);
      const share = cells / Math.min(perBlock, capacity - at * perBlock);
      filled[at]! += share;
      if (rows.length > 1) shared[at]! += share;
      // Larger parts of one sequence in pieces are rare enough for the largest piece to stand for the block.
      if (share > most[at]!) {
        most[at] = share;
        owner[at] = rows[0]!;
      }
    }
  }
  return { owner, filled, shared };
}

/** What a sequence has in a block: positions [first, last]. */
export interface Holding {
  row: number;
  cells: number;
  first: number;
  last: number;
}

/** Return what lies in cells [first, first + count), by sequence. */
export function holdingsIn(runs: readonly Run[], first: number, count: number): Holding[] {
  const found = new Map<number, Holding>();
  for (const [row, begin, length, position] of runs) {
    const from = Math.max(first, begin);
    const to = Math.min(first + count, begin + length);
    if (from >= to) continue;
    const low = position + from - begin;
    const high = position + to - 1 - begin;
    const before = found.get(row);
    if (before === undefined) found.set(row, { row, cells: to - from, first: low, last: high });
    else {
      before.cells += to - from;
      before.first = Math.min(before.first, low);
      before.last = Math.max(before.last, high);
    }
  }
  return [...found.values()].sort((a, b) => a.row - b.row);
}

/** Return the block that a key moves to. */
export function moved(at: number, key: string, { columns, blocks }: Grid): number | null {
  const to: Record<string, number> = {
    ArrowLeft: at - 1,
    ArrowRight: at + 1,
    ArrowUp: at - columns,
    ArrowDown: at + columns,
    Home: 0,
    End: blocks - 1,
    PageUp: at - columns * 5,
    PageDown: at + columns * 5,
  };
  const target = to[key];
  return target === undefined ? null : Math.min(blocks - 1, Math.max(0, target));
}

/** Return the name of a sequence, as `puna` gives it in its pictures: A, B, ..., Z, AA, AB, ... */
export function rowName(row: number): string {
  let name = "";
  for (let rest = row; rest >= 0; rest = Math.floor(rest / 26) - 1) {
    name = String.fromCharCode(65 + (rest % 26)) + name;
  }
  return name;
}

/** Return what a block holds, in words. */
export function blockText(cache: LiveCache, sequences: LiveSequence[], grid: Grid, block: number): string {
  const first = block * grid.perBlock;
  const cells = Math.min(grid.perBlock, cache.capacity - first);
  const where = cells === 1 ? `Cell ${count(first)}` : `Cells ${count(first)}–${count(first + cells - 1)}`;
  const holdings = holdingsIn(cache.runs, first, cells);
  if (holdings.length === 0) return `${where}: free`;
  const said = holdings.slice(0, 6).map(({ row, first: low, last: high }) => {
    const sequence = sequences.find((each) => each.row === row);
    const about = [sequence?.state === "idle" ? "kept for later prompts" : sequence?.state, sequence?.client];
    const extra = about.filter(Boolean).join(", ");
    const positions = low === high ? `position ${count(low)}` : `positions ${count(low)}–${count(high)}`;
    return `${rowName(row)} ${positions}${extra ? ` (${extra})` : ""}`;
  });
  const more = holdings.length > said.length ? ` and ${plural(holdings.length - said.length, "other")}` : "";
  return `${where}: ${holdings.length > 1 ? "shared or side by side: " : ""}${said.join("; ")}${more}`;
}

/** Return layers in words: "layers 0–5", "layers 0, 2, 4". */
export function layersText(layers: LiveCache["layers"]): string {
  if (layers.length === 0) return "no layers";
  const parts: string[] = [];
  for (let at = 0; at < layers.length; ) {
    let end = at;
    while (end + 1 < layers.length && layers[end + 1] === layers[end]! + 1) end += 1;
    parts.push(end - at > 1 ? `${layers[at]}–${layers[end]}` : layers.slice(at, end + 1).join(", "));
    at = end + 1;
  }
  const shown = parts.length > 6 ? [...parts.slice(0, 5), "…"] : parts;
  return `${layers.length === 1 ? "layer" : "layers"} ${shown.join(", ")}`;
}
