import { useSignal } from "@preact/signals";
import { useMemo, useRef } from "preact/hooks";
import type { LiveCache, LiveSequence } from "../api/types";
import { theme, token } from "../state/theme";
import { count } from "../ui/format";
import { usePainting, useWidth } from "./canvas";
import { type Blocks, blocksOf, blockText, type Grid, gridFor, moved, segmentsOf } from "./cells";
import { colorOf } from "./sequences";

const HEIGHT = 230;

export interface CellPictureProps {
  label: string;
  cache: LiveCache;
  sequences: LiveSequence[];
  /** The row of the sequence that stands out, if one does. */
  chosen: number | null;
}

/** The cells of a cache, a block each or a block for a few, coloured by sequence. */
export function CellPicture({ label, cache, sequences, chosen }: CellPictureProps) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(box);
  const at = useSignal<number | null>(null);
  const look = theme.value;
  const { capacity, runs } = cache;
  const grid = useMemo(() => gridFor(capacity, width, HEIGHT), [capacity, width]);
  const blocks = useMemo(() => blocksOf(segmentsOf(runs), capacity, grid), [runs, capacity, grid]);
  const height = grid.rows * grid.pitch;
  const idle = useMemo(
    () => new Set(sequences.filter(({ state }) => state === "idle").map(({ row }) => row)),
    [sequences],
  );

  usePainting(
    canvas,
    width,
    height,
    (context) => paint(context, { grid, blocks, idle, chosen, at: at.value }),
    [grid, blocks, idle, chosen, at.value, look],
  );

  const pointed = (event: PointerEvent) => {
    const { left, top } = canvas.current!.getBoundingClientRect();
    const column = Math.floor((event.clientX - left) / grid.pitch);
    const row = Math.floor((event.clientY - top) / grid.pitch);
    const block = row * grid.columns + column;
    at.value = column >= 0 && column < grid.columns && block >= 0 && block < grid.blocks ? block : null;
  };
  return (
    <div class="drawing">
      {/* biome-ignore lint/a11y/useSemanticElements: a picture whose parts are reached by arrow keys */}
      <div
        ref={box}
        class="drawing-box"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: see above
        tabIndex={0}
        role="group"
        aria-label={`${label}. Arrow keys go through the cells.`}
        onPointerMove={pointed}
        onPointerLeave={() => {
          at.value = null;
        }}
        onKeyDown={(event) => {
          const to = moved(at.value ?? -1, event.key, grid);
          if (to === null) return;
          event.preventDefault();
          at.value = to;
        }}
        onBlur={() => {
          at.value = null;
        }}
      >
        <canvas ref={canvas} style={{ inlineSize: "100%", blockSize: `${height}px` }} />
      </div>
      <p class="drawing-said" aria-live="polite">
        {at.value === null
          ? `${grid.perBlock === 1 ? "One block is one cell" : `One block is ${count(grid.perBlock)} cells`}. ` +
            "Point at one, or use the arrow keys, to see whose it is."
          : blockText(cache, sequences, grid, at.value)}
      </p>
    </div>
  );
}

interface Painted {
  grid: Grid;
  blocks: Blocks;
  idle: ReadonlySet<number>;
  chosen: number | null;
  at: number | null;
}

function paint(context: CanvasRenderingContext2D, { grid, blocks, idle, chosen, at }: Painted): void {
  const { pitch, columns } = grid;
  const gap = pitch >= 7 ? 1.5 : 1;
  const side = pitch - gap;
  const free = token("--line");
  const paper = token("--raised");
  const colors = new Map<number, string>();
  const color = (row: number) => {
    const known = colors.get(row) ?? token(colorOf(row));
    colors.set(row, known);
    return known;
  };
  const left = (block: number) => (block % columns) * pitch;
  const top = (block: number) => Math.floor(block / columns) * pitch;

  // All free blocks lie below: one path for the background, whatever their number.
  context.fillStyle = free;
  context.globalAlpha = 0.55;
  context.beginPath();
  for (let block = 0; block < grid.blocks; block += 1) {
    if (blocks.owner[block]! < 0) context.rect(left(block), top(block), side, side);
  }
  context.fill();

  for (let block = 0; block < grid.blocks; block += 1) {
    const row = blocks.owner[block]!;
    if (row < 0) continue;
    const x = left(block);
    const y = top(block);
    const strength = chosen === null || chosen === row ? 1 : 0.18;
    context.fillStyle = color(row);
    const isShared = blocks.shared[block]! > 0;
    if (idle.has(row) && !isShared) {
      // Kept for later prompts: a frame with a pale middle.
      context.globalAlpha = strength * 0.3 * (0.4 + 0.6 * blocks.filled[block]!);
      context.fillRect(x, y, side, side);
      context.globalAlpha = strength * 0.9;
      context.strokeStyle = color(row);
      context.lineWidth = 1;
      context.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
    } else {
      context.globalAlpha = strength * (0.35 + 0.65 * blocks.filled[block]!);
      context.fillRect(x, y, side, side);
    }
    if (isShared) {
      // Shared by several: a diagonal through it.
      context.globalAlpha = strength;
      context.strokeStyle = paper;
      context.lineWidth = Math.max(1.25, side / 5);
      context.beginPath();
      context.moveTo(x, y + side);
      context.lineTo(x + side, y);
      context.stroke();
    }
  }
  context.globalAlpha = 1;
  if (at !== null) {
    context.strokeStyle = token("--text");
    context.lineWidth = 2;
    context.strokeRect(left(at) - 1, top(at) - 1, side + 2, side + 2);
  }
}
