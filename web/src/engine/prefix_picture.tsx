import { useSignal } from "@preact/signals";
import { useMemo, useRef } from "preact/hooks";
import type { LivePrefix, LiveSequence } from "../api/types";
import { theme, token } from "../state/theme";
import { count, plural } from "../ui/format";
import { usePainting, useWidth } from "./canvas";
import { rowName } from "./cells";
import { type Bar, barAt, barText, type Icicle, icicle, movedBar, runningThrough } from "./icicle";

const MOST_LANE = 24;
const LEAST_LANE = 7;
const HEIGHT = 300;

/** The prefix tree: tokens from left to right, branches below each other. */
export function PrefixPicture({ nodes, sequences }: { nodes: LivePrefix[]; sequences: LiveSequence[] }) {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(box);
  const at = useSignal<number | null>(null);
  const look = theme.value;
  const layout = useMemo(() => icicle(nodes), [nodes]);
  const running = useMemo(() => runningThrough(nodes, sequences), [nodes, sequences]);
  const lane = Math.max(LEAST_LANE, Math.min(MOST_LANE, Math.floor(HEIGHT / Math.max(1, layout.lanes))));
  const height = Math.max(lane, layout.lanes * lane);
  const perToken = width / Math.max(1, layout.tokens);
  const chosen = at.value === null ? null : (layout.bars[at.value] ?? null);

  usePainting(
    canvas,
    width,
    height,
    (context) => paint(context, { layout, nodes, running, lane, perToken, chosen }),
    [layout, running, lane, perToken, at.value, look],
  );

  return (
    <div class="drawing">
      {/* biome-ignore lint/a11y/useSemanticElements: a picture whose parts are reached by arrow keys */}
      <div
        ref={box}
        class="drawing-box scrolls"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: see above
        tabIndex={0}
        role="group"
        aria-label={`The prefix tree: ${plural(nodes.length, "node")}. Arrow keys go through it.`}
        onPointerMove={(event) => {
          const { left, top } = canvas.current!.getBoundingClientRect();
          const bar = barAt(
            layout,
            (event.clientX - left) / perToken,
            Math.floor((event.clientY - top) / lane),
          );
          at.value = bar === null ? null : layout.bars.indexOf(bar);
        }}
        onPointerLeave={() => {
          at.value = null;
        }}
        onBlur={() => {
          at.value = null;
        }}
        onKeyDown={(event) => {
          const to = movedBar(layout, nodes, at.value ?? -1, event.key);
          if (to === null) return;
          event.preventDefault();
          at.value = to;
          const top = layout.bars[to]!.lane * lane;
          const view = event.currentTarget;
          if (top < view.scrollTop || top + lane > view.scrollTop + view.clientHeight)
            view.scrollTop = top - lane;
        }}
      >
        <canvas ref={canvas} style={{ inlineSize: "100%", blockSize: `${height}px` }} />
      </div>
      <p class="drawing-said" aria-live="polite">
        {chosen === null
          ? "The wider a bar, the more tokens. Point at one, or use the arrow keys, to read it."
          : barText(nodes[chosen.node]!, running.has(chosen.node))}
      </p>
    </div>
  );
}

interface Painted {
  layout: Icicle;
  nodes: LivePrefix[];
  running: ReadonlySet<number>;
  lane: number;
  perToken: number;
  chosen: Bar | null;
}

function paint(context: CanvasRenderingContext2D, painted: Painted): void {
  const { layout, nodes, running, lane, perToken, chosen } = painted;
  const accent = token("--accent");
  const text = token("--text");
  const paper = token("--raised");
  const most = Math.log1p(nodes.reduce((highest, { hits }) => Math.max(highest, hits), 1));
  const gap = lane > 10 ? 2 : 1;
  context.font = `11px ${token("--font")}`;
  context.textBaseline = "middle";
  for (const bar of layout.bars) {
    const node = nodes[bar.node]!;
    const x = bar.begin * perToken;
    const y = bar.lane * lane;
    const across = Math.max(1, (bar.end - bar.begin) * perToken - 1);
    const down = bar.lanes * lane - gap;
    context.globalAlpha = 1;
    context.fillStyle = paper;
    context.fillRect(x, y, across, down);
    // The more often it was reused, the stronger.
    context.globalAlpha = 0.14 + (0.5 * Math.log1p(node.hits)) / most;
    context.fillStyle = accent;
    context.fillRect(x, y, across, down);
    if (running.has(bar.node)) {
      // In use: a rule along its upper edge.
      context.globalAlpha = 1;
      context.fillStyle = text;
      context.fillRect(x, y, across, Math.min(3, down));
    }
    if (across > 44 && lane >= 14) {
      context.save();
      context.beginPath();
      context.rect(x, y, across, down);
      context.clip();
      context.globalAlpha = 1;
      context.fillStyle = text;
      const name = node.rows.length > 0 ? `${node.rows.map(rowName).join(" ")} · ` : "";
      const hits = node.hits > 0 ? ` · ${plural(node.hits, "hit")}` : "";
      const words = `${name}${count(bar.end - bar.begin)} tokens${hits}`;
      const short = `${name}${count(bar.end - bar.begin)}`;
      const said = context.measureText(words).width < across - 10 ? words : short;
      if (context.measureText(said).width < across - 6)
        context.fillText(said, x + 5, y + Math.min(down, lane * 1.5) / 2 + 1);
      context.restore();
    }
  }
  context.globalAlpha = 1;
  if (chosen !== null) {
    context.strokeStyle = text;
    context.lineWidth = 2;
    context.strokeRect(
      chosen.begin * perToken + 1,
      chosen.lane * lane + 1,
      Math.max(2, (chosen.end - chosen.begin) * perToken - 3),
      chosen.lanes * lane - gap - 2,
    );
  }
}
