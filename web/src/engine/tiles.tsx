import type { LiveModel } from "../api/types";
import { count, duration, percent, short } from "../ui/format";
import { type History, recent } from "./history";

/** Seconds that the numbers are means of. */
const SECONDS = 5;

/** Return a speed: 0.4, 12.3, 146, 2,310. */
export const speed = (value: number): string => (value > 0 && value < 99.5 ? value.toFixed(1) : count(value));

const stepTime = (seconds: number): string =>
  seconds < 0.00995 ? `${(seconds * 1000).toFixed(1)} ms` : duration(seconds);

export function Tiles({ model, history }: { model: LiveModel; history: History | undefined }) {
  const now = recent(history, SECONDS);
  const used = model.caches.reduce((sum, cache) => sum + cache.used, 0);
  const cells = model.caches.reduce((sum, cache) => sum + cache.capacity, 0);
  const { hits, misses } = model.prefixes ?? { hits: 0, misses: 0 };
  const tiles: [label: string, value: string, unit: string, about: string][] = [
    ["Generating", speed(now.generated), "tokens/s", `Tokens of all answers, over the last ${SECONDS} s`],
    [
      "Reading prompts",
      speed(now.prompt),
      "tokens/s",
      `Tokens of prompts evaluated, over the last ${SECONDS} s`,
    ],
    [
      "Step",
      now.step_s === null ? "–" : stepTime(now.step_s),
      "",
      "Time of one pass of the batch through the model",
    ],
    [
      "Busy",
      percent(Math.min(1, now.busy)),
      "",
      "Share of the time spent in steps; the rest is waiting for work",
    ],
    ["Running", String(model.running), `of ${model.parallel}`, "Sequences that take part in the steps"],
    ["Waiting", String(model.waiting), "", "Requests that wait for a slot"],
    [
      "Cells used",
      cells > 0 ? percent(used / cells) : "–",
      `of ${short(cells)}`,
      "Cells of the caches that hold a token",
    ],
    [
      "Prefix hits",
      hits + misses > 0 ? percent(hits / (hits + misses)) : "–",
      `of ${short(hits + misses)}`,
      "Prompts that began like an earlier one, which then need not be read again",
    ],
  ];
  return (
    <dl class="tiles">
      {tiles.map(([label, value, unit, about]) => (
        <div key={label} class="tile card" data-tip={about}>
          <dt>{label}</dt>
          <dd>
            <b>{value}</b>
            {unit && <span> {unit}</span>}
          </dd>
        </div>
      ))}
    </dl>
  );
}
