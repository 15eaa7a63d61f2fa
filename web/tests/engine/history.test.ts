import { describe, expect, test } from "vitest";
import type { Live, LiveModel, LiveSteps } from "../../src/api/types";
import {
  columns,
  type Histories,
  niceCeiling,
  recent,
  smoothed,
  stacked,
  stretches,
  WINDOW_S,
  withGap,
  withState,
} from "../../src/engine/history";

const NO_STEPS: LiveSteps = {
  steps: 0,
  prompt_s: 0,
  decode_s: 0,
  sample_s: 0,
  mask_s: 0,
  draft_s: 0,
  image_s: 0,
  other_s: 0,
  prompt_tokens: 0,
  cached_tokens: 0,
  tokens: 0,
  drafted: 0,
  accepted: 0,
};

function state(time: number, steps: Partial<LiveSteps> | null, name = "demo"): Live {
  const model = {
    name,
    replicas: [] as LiveModel["replicas"],
    running: 1,
    waiting: 0,
    steps: steps && { ...NO_STEPS, ...steps },
  } as LiveModel;
  return { time, models: [model] } as Live;
}

const following = (...states: Live[]) => states.reduce<Histories>(withState, {});

describe("withState", () => {
  test("makes rates of the differences of sums", () => {
    const { demo } = following(
      state(10, { tokens: 100, decode_s: 1 }),
      state(10.5, { tokens: 150, decode_s: 1.2, steps: 4 }),
    );
    expect(demo!.samples).toHaveLength(1);
    const [sample] = demo!.samples;
    expect(sample).toMatchObject({ time: 10.5, span: 0.5, steps: 4, generated: 100 });
    expect(sample!.shares.decode).toBeCloseTo(0.4);
  });

  test("begins anew, after a gap, when a model was loaded again", () => {
    const { demo } = following(
      state(10, { steps: 5, tokens: 5 }),
      state(10.5, { steps: 9, tokens: 9 }),
      state(11, { steps: 1, tokens: 1 }),
      state(11.5, { steps: 2, tokens: 2 }),
    );
    expect(demo!.samples.map((sample) => sample?.generated ?? null)).toEqual([8, null, 2]);
  });

  test("draws no line over the time in which no state came", () => {
    const { demo } = following(
      state(10, {}),
      state(10.5, {}),
      state(60, { tokens: 900 }),
      state(60.5, { tokens: 900 }),
    );
    expect(demo!.samples.map((sample) => sample?.generated ?? null)).toEqual([0, null, 0]);
  });

  test("shares of time never exceed all of it", () => {
    const { demo } = following(state(10, {}), state(10.5, { decode_s: 1.5, prompt_s: 0.5 }));
    const { shares } = demo!.samples[0]!;
    expect(shares.decode).toBeCloseTo(0.75);
    expect(shares.prompt).toBeCloseTo(0.25);
  });

  test("forgets what is older than the window, and models without samples", () => {
    let histories: Histories = {};
    for (let at = 0; at < WINDOW_S * 4; at += 1)
      histories = withState(histories, state(at / 2, { tokens: at }));
    expect(histories.demo!.samples.length).toBeLessThanOrEqual(WINDOW_S * 2);
    histories = withState(histories, { time: WINDOW_S * 9, models: [] as LiveModel[] } as Live);
    expect(histories).toEqual({});
  });

  test("an engine that does not tell its steps has no history", () => {
    expect(following(state(1, null), state(2, null))).toEqual({});
  });
});

test("a gap is marked once, and the next state only begins anew", () => {
  let histories = following(state(10, {}), state(10.5, { tokens: 5 }));
  histories = withGap(withGap(histories));
  histories = withState(histories, state(11, { tokens: 9 }));
  expect(histories.demo!.samples.map((sample) => sample?.generated ?? null)).toEqual([10, null]);
});

test("columns have rising times and null for gaps", () => {
  const histories = withGap(following(state(10, {}), state(10.5, { tokens: 5 })));
  const { times, values } = columns(
    following(state(10, {}), state(10.5, { tokens: 5 }), state(90, {}), state(90.5, { tokens: 1 })).demo,
    [({ generated }) => generated],
  );
  expect(values).toEqual([[10, null, 2]]);
  expect([...times].sort((a, b) => a - b)).toEqual(times);
  expect(columns(histories.other, [() => 1])).toEqual({ times: [], values: [[]] });
});

test("stacked rows lie on the sum of those below", () => {
  expect(
    stacked([
      [1, null, 3],
      [10, null, 30],
      [0, null, 1],
    ]),
  ).toEqual([
    [1, null, 3],
    [11, null, 33],
    [11, null, 34],
  ]);
});

test("smoothing takes the mean over time, and not over gaps", () => {
  const { demo } = following(
    state(10, {}),
    state(10.5, { tokens: 10 }),
    state(11, { tokens: 10 }),
    state(50, { tokens: 10 }),
    state(50.5, { tokens: 20 }),
  );
  expect(smoothed(demo, 2).samples.map((sample) => sample?.generated ?? null)).toEqual([20, 10, null, 20]);
});

test("recent tells the time of a step and how busy the engine is", () => {
  const { demo } = following(
    state(10, {}),
    state(10.5, { decode_s: 0.2, steps: 10, tokens: 10 }),
    state(11, { decode_s: 0.4, steps: 20, tokens: 20 }),
  );
  const now = recent(demo, 5);
  expect(now.generated).toBeCloseTo(20);
  expect(now.step_s).toBeCloseTo(0.02);
  expect(now.busy).toBeCloseTo(0.4);
  expect(recent(undefined, 5).step_s).toBe(null);
});

test("scales end at 1, 2 or 5 times a power of ten", () => {
  expect([null, 0, 0.3, 1, 19, 20, 480, 990].map(niceCeiling)).toEqual([1, 1, 0.5, 2, 20, 50, 500, 2000]);
});

test("stretches are means of their samples, newest first", () => {
  const { demo } = following(
    state(30, {}),
    state(30.5, { tokens: 10 }),
    state(31, { tokens: 10 }),
    state(60, { tokens: 10 }),
    state(60.5, { tokens: 20 }),
  );
  expect(stretches(demo, 30).map(({ time, generated }) => [time, generated])).toEqual([
    [60, 20],
    [30, 10],
  ]);
});

test("what happened last stays while it is paused", () => {
  const { demo } = withGap(following(state(10, {}), state(10.5, { tokens: 10 })));
  expect(recent(demo, 5).generated).toBe(20);
});
