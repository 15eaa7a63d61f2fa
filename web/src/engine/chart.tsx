import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type uPlot from "uplot";
import { theme, token } from "../state/theme";
import { Spinner } from "../ui/progress";
import { type Columns, niceCeiling, stacked, WINDOW_S } from "./history";

export interface Series {
  label: string;
  /** The custom property with its colour. */
  color: string;
  /** Dashes of a line, in pixels, so that lines differ not by colour alone. */
  dash?: number[];
}

export interface ChartProps {
  label: string;
  series: Series[];
  data: Columns;
  /** Whether each series lies on those before it. */
  stack?: boolean;
  /** The end of the scale; by default the largest value. */
  most?: number;
  format: (value: number) => string;
  /** The newest time shown, in seconds since 1970. */
  now: number;
}

const HEIGHT = 176;

/** Lines, or areas on each other, over the last minutes. */
export function Chart(props: ChartProps) {
  const { label, series, data, stack, format } = props;
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const at = useSignal<number | null>(null);
  const failed = useSignal(false);
  const ready = useSignal(false);
  const look = theme.value;
  const names = series.map((each) => each.label).join();

  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    let gone = false;
    const watcher = new ResizeObserver(() => {
      plot.current?.setSize({ width: element.clientWidth, height: HEIGHT });
    });
    import("uplot").then(
      ({ default: UPlot }) => {
        if (gone) return;
        const options = optionsOf(latest, element.clientWidth, (index) => {
          at.value = index;
        });
        plot.current = new UPlot(options, aligned(latest.current), element);
        watcher.observe(element);
        ready.value = true;
      },
      () => {
        failed.value = true;
      },
    );
    return () => {
      gone = true;
      watcher.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [look, names, stack]);

  useEffect(() => {
    plot.current?.setData(aligned(props));
  }, [data, props.now]);

  // While it is paused, a gap is the newest.
  const last = data.times.length - (data.values[0]?.at(-1) === null ? 2 : 1);
  const shown = at.value !== null && at.value <= last ? at.value : last;
  const time = data.times[shown];
  return (
    <figure class="chart" aria-label={label}>
      <div ref={box} class="chart-box" aria-hidden="true">
        {!ready.value &&
          (failed.value ? <p class="panel-none">The chart could not be loaded.</p> : <Spinner />)}
      </div>
      <figcaption class="chart-legend">
        <span class="chart-time">
          {at.value !== null && time !== undefined ? `${Math.round(props.now - time)} s ago` : "now"}
        </span>
        {series.map((each, index) => {
          const value = data.values[index]?.[shown];
          return (
            <span key={each.label} class="chart-key">
              <Swatch color={each.color} dashed={each.dash !== undefined} line={!stack} />
              {each.label}
              <b>{value === null || value === undefined ? "–" : format(value)}</b>
            </span>
          );
        })}
      </figcaption>
    </figure>
  );
}

function Swatch({ color, dashed, line }: { color: string; dashed: boolean; line: boolean }) {
  return (
    <svg width="14" height="10" aria-hidden="true" style={{ color: `var(${color})` }}>
      {line ? (
        <line
          x1="0"
          x2="14"
          y1="5"
          y2="5"
          stroke="currentColor"
          stroke-width="2.5"
          stroke-dasharray={dashed ? "4 2.5" : undefined}
        />
      ) : (
        <rect width="12" height="10" rx="2" fill="currentColor" />
      )}
    </svg>
  );
}

/** Return the data in the order in which it is drawn: of areas on each other the highest first. */
function aligned({ data, stack }: ChartProps): uPlot.AlignedData {
  if (!stack) return [data.times, ...data.values] as uPlot.AlignedData;
  return [data.times, ...stacked(data.values).reverse()] as uPlot.AlignedData;
}

function optionsOf(
  latest: { current: ChartProps },
  width: number,
  onCursor: (index: number | null) => void,
): uPlot.Options {
  const { series, stack } = latest.current;
  const drawn = stack ? [...series].reverse() : series;
  const axis = {
    stroke: token("--text-faint"),
    font: `11px ${token("--font")}`,
    ticks: { show: false },
    grid: { stroke: token("--line"), width: 1 },
  };
  return {
    width,
    height: HEIGHT,
    padding: [8, 18, 0, 0], // the label of the newest time is centred at the right edge
    legend: { show: false },
    cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
    scales: {
      x: { time: false, range: () => [latest.current.now - WINDOW_S, latest.current.now] },
      y: { range: (_, __, highest) => [0, latest.current.most ?? niceCeiling(highest)] },
    },
    axes: [
      {
        ...axis,
        size: 26,
        splits: () => [5, 4, 3, 2, 1, 0].map((minutes) => latest.current.now - minutes * 60),
        values: (_, splits) =>
          splits.map((time) => {
            const minutes = Math.round((latest.current.now - time) / 60);
            return minutes === 0 ? "now" : `−${minutes} min`;
          }),
      },
      {
        ...axis,
        size: 48,
        values: (_, splits) => splits.map((value) => latest.current.format(value)),
        space: 34,
      },
    ],
    series: [
      {},
      ...drawn.map((each) => ({
        label: each.label,
        stroke: token(stack ? "--raised" : each.color),
        width: stack ? 0.75 : 2,
        fill: stack ? token(each.color) : undefined,
        dash: each.dash,
        points: { show: false },
      })),
    ],
    hooks: { setCursor: [(self) => onCursor(self.cursor.left! >= 0 ? (self.cursor.idx ?? null) : null)] },
  };
}
