import type { Live, LiveModel, LiveSteps } from "../api/types";

/** What the time of steps goes on, from the bottom of the chart to its top. */
export const PARTS = ["prompt", "decode", "sample", "mask", "draft", "image", "other"] as const;
export type Part = (typeof PARTS)[number];

/** What an engine did between two states of the feed. Rates are per second. */
export interface Sample {
  /** Seconds since 1970. */
  time: number;
  /** Seconds since the state before. */
  span: number;
  steps: number;
  /** Shares of the time that passed. */
  shares: Record<Part, number>;
  prompt: number;
  cached: number;
  generated: number;
  drafted: number;
  accepted: number;
  running: number;
  waiting: number;
}

/** The last minutes of one engine; null is a gap, in which nobody looked. */
export interface History {
  samples: readonly (Sample | null)[];
  last: { time: number; steps: LiveSteps } | null;
}

export type Histories = Readonly<Record<string, History>>;

/** Seconds that histories go back. */
export const WINDOW_S = 300;
/** States further apart than this have a gap between them. */
const GAP_S = 5;

const empty: History = { samples: [], last: null };

/** Return the name of an engine's history: that of its model, and of its replica if there are several. */
export const engineOf = ({ name, replica, replicas }: LiveModel): string =>
  replicas.length > 1 ? `${name} ${replica}` : name;

/** Return the histories after a state of the feed. Models that left keep theirs, for they may come back. */
export function withState(histories: Histories, state: Live): Histories {
  const next: Record<string, History> = {};
  for (const [name, history] of Object.entries(histories)) {
    const samples = trimmed(history.samples, state.time);
    const isRecent = history.last !== null && history.last.time > state.time - WINDOW_S;
    if (samples.length > 0 || isRecent)
      next[name] = samples === history.samples ? history : { ...history, samples };
  }
  for (const model of state.models) {
    const engine = engineOf(model);
    if (model.steps !== null) next[engine] = withModel(next[engine] ?? empty, model, state.time);
  }
  return next;
}

/** Return the histories after nobody looked for a while. */
export function withGap(histories: Histories): Histories {
  return Object.fromEntries(
    Object.entries(histories).map(([name, { samples }]) => [
      name,
      { samples: samples.at(-1) === null || samples.length === 0 ? samples : [...samples, null], last: null },
    ]),
  );
}

function withModel(history: History, model: LiveModel, time: number): History {
  const steps = model.steps!;
  const { last } = history;
  const now = { time, steps };
  // Sums that became smaller belong to a model that was loaded anew.
  if (last === null || steps.steps < last.steps.steps || time <= last.time) {
    return { samples: broken(history.samples), last: now };
  }
  if (time - last.time > GAP_S) return { samples: broken(history.samples), last: now };
  return { samples: [...history.samples, sampleOf(last, now, model)], last: now };
}

const broken = (samples: History["samples"]) =>
  samples.length === 0 || samples.at(-1) === null ? samples : [...samples, null];

function sampleOf(
  before: { time: number; steps: LiveSteps },
  now: { time: number; steps: LiveSteps },
  model: LiveModel,
): Sample {
  const span = now.time - before.time;
  const rate = (name: keyof LiveSteps) => Math.max(0, now.steps[name] - before.steps[name]) / span;
  const shares = Object.fromEntries(PARTS.map((part) => [part, rate(`${part}_s`)])) as Record<Part, number>;
  // A step is counted when it ends, with the time of the state before in it: more than all of the time is no share.
  const sum = Object.values(shares).reduce((total, share) => total + share, 0);
  if (sum > 1) for (const part of PARTS) shares[part] /= sum;
  return {
    time: now.time,
    span,
    steps: rate("steps") * span,
    shares,
    prompt: rate("prompt_tokens"),
    cached: rate("cached_tokens"),
    generated: rate("tokens"),
    drafted: rate("drafted"),
    accepted: rate("accepted"),
    running: model.running,
    waiting: model.waiting,
  };
}

function trimmed(samples: History["samples"], now: number): History["samples"] {
  const first = samples.findIndex((sample) => sample !== null && sample.time > now - WINDOW_S);
  if (first < 0) return samples.some((sample) => sample !== null) ? [] : samples;
  return first === 0 ? samples : samples.slice(first);
}

/** Columns of a chart: times, and a row of values for each series; gaps are null. */
export interface Columns {
  times: number[];
  values: (number | null)[][];
}

export function columns(history: History | undefined, series: ((sample: Sample) => number)[]): Columns {
  const times: number[] = [];
  const values: (number | null)[][] = series.map(() => []);
  let before = 0;
  for (const sample of history?.samples ?? []) {
    before = sample === null ? before + 0.001 : sample.time;
    times.push(before);
    series.forEach((value, index) => {
      values[index]!.push(sample === null ? null : value(sample));
    });
  }
  return { times, values };
}

/** Return rows of values each lying on the sum of those before it. */
export function stacked(values: (number | null)[][]): (number | null)[][] {
  const sums: (number | null)[] = (values[0] ?? []).map(() => 0);
  return values.map((row) =>
    row.map((value, at) => {
      sums[at] = value === null ? null : (sums[at] ?? 0) + value;
      return sums[at] ?? null;
    }),
  );
}

/** Return a row whose values are means of those within `seconds` before each, weighted by their spans. */
export function smoothed(history: History | undefined, seconds: number): History {
  const samples: (Sample | null)[] = [];
  let recent: Sample[] = [];
  for (const sample of history?.samples ?? []) {
    if (sample === null) {
      recent = [];
      samples.push(null);
      continue;
    }
    recent.push(sample);
    recent = recent.filter((each) => each.time > sample.time - seconds);
    samples.push(mean(recent, sample));
  }
  return { samples, last: history?.last ?? null };
}

function mean(recent: Sample[], at: Sample): Sample {
  const spans = recent.reduce((sum, { span }) => sum + span, 0);
  const of = (value: (sample: Sample) => number) =>
    recent.reduce((sum, sample) => sum + value(sample) * sample.span, 0) / spans;
  return {
    ...at,
    shares: Object.fromEntries(
      PARTS.map((part) => [part, of(({ shares }) => shares[part])]),
    ) as Sample["shares"],
    prompt: of(({ prompt }) => prompt),
    cached: of(({ cached }) => cached),
    generated: of(({ generated }) => generated),
    drafted: of(({ drafted }) => drafted),
    accepted: of(({ accepted }) => accepted),
  };
}

/** What the last seconds came to. */
export interface Recent {
  prompt: number;
  generated: number;
  /** Seconds that a step took; null without steps. */
  step_s: number | null;
  busy: number;
  shares: Record<Part, number>;
}

export function recent(history: History | undefined, seconds: number): Recent {
  const samples = history?.samples ?? [];
  // While it is paused, a gap is the newest: then those before it stay.
  const end = samples.at(-1) === null ? samples.length - 1 : samples.length;
  const last = samples[end - 1] ?? null;
  const chosen: Sample[] = [];
  for (let at = end - 1; at >= 0; at -= 1) {
    const sample = samples[at] ?? null;
    if (sample === null || last === null || sample.time <= last.time - seconds) break;
    chosen.push(sample);
  }
  const shares = Object.fromEntries(PARTS.map((part) => [part, 0])) as Record<Part, number>;
  if (last === null) return { prompt: 0, generated: 0, step_s: null, busy: 0, shares };
  const now = mean(chosen, last);
  const busy = PARTS.reduce((sum, part) => sum + now.shares[part], 0);
  const spans = chosen.reduce((sum, { span }) => sum + span, 0);
  const steps = chosen.reduce((sum, sample) => sum + sample.steps, 0);
  return {
    prompt: now.prompt,
    generated: now.generated,
    step_s: steps > 0 ? (busy * spans) / steps : null,
    busy,
    shares: now.shares,
  };
}

/** Means over stretches of `seconds`, newest first, for a table. */
export function stretches(history: History | undefined, seconds: number): Sample[] {
  const groups = new Map<number, Sample[]>();
  for (const sample of history?.samples ?? []) {
    if (sample === null) continue;
    const key = Math.floor(sample.time / seconds);
    groups.set(key, [...(groups.get(key) ?? []), sample]);
  }
  return [...groups.entries()]
    .reverse()
    .map(([key, group]) => ({ ...mean(group, group[0]!), time: key * seconds }));
}

/** Return the end of a scale that holds `value`: 1, 2 or 5 times a power of ten. */
export function niceCeiling(value: number | null | undefined): number {
  if (value === null || value === undefined || !(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5, 10].find((each) => each * power >= value * 1.02) ?? 20) * power;
}
