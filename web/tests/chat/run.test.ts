import { describe, expect, test } from "vitest";
import type { RunEvent, RunStats } from "../../src/api/types";
import { begun, reduce } from "../../src/chat/run";
import { pick, random } from "../random";

const STATS: RunStats = {
  prompt_tokens: 10,
  cached: 4,
  tokens: 3,
  thought_tokens: 1,
  prompt_s: 0.1,
  eval_s: 0.3,
  load_s: 0,
  total_s: 0.5,
  first_token_s: 0.2,
  drafted: 0,
  accepted: 0,
  drafted_by: "",
  truncated: 0,
  shifted: 0,
  context: 13,
  num_ctx: 4096,
};
const START: RunEvent = {
  event: "start",
  id: "r",
  chat: "c",
  model: "demo",
  messages: ["m"],
  samples: 1,
  created: 0,
};
const delta = (parts: object, sample = 0): RunEvent => ({ event: "delta", sample, ...parts });
const done = (sample = 0): RunEvent => ({
  event: "done",
  sample,
  reason: "stop",
  stats: STATS,
  warnings: ["slow"],
});
const logprob = (token: string) => ({ token, logprob: -0.1, bytes: null, top: [] });

describe("the events of a run", () => {
  test("add up to an answer with its thought, calls and statistics", () => {
    const state = reduce(
      begun(1),
      [
        START,
        delta({ thinking: "Hm", logprobs: [logprob("Hm")] }),
        delta({ thinking: "m." }),
        delta({ text: "Let me see. " }),
        delta({ calls: [{ index: 0, id: "x", name: "f", arguments: '{"a"' }] }),
        delta({
          calls: [
            { index: 0, arguments: ":1}" },
            { index: 1, id: "y", name: "g" },
          ],
        }),
        done(),
        { event: "end", state: "done" },
      ],
      1,
    );
    expect(state.model).toBe("demo");
    expect(state.ended).toBe("done");
    expect(state.answers[0]).toMatchObject({
      thinking: "Hmm.",
      text: "Let me see. ",
      calls: [
        { index: 0, id: "x", name: "f", arguments: '{"a":1}' },
        { index: 1, id: "y", name: "g", arguments: "" },
      ],
      done: { reason: "stop", stats: STATS, warnings: ["slow"] },
    });
    expect(state.answers[0]?.logprobs).toHaveLength(1);
  });

  test("are the same however they are bundled", () => {
    const next = random(5);
    for (let round = 0; round < 200; round += 1) {
      const events: RunEvent[] = [{ ...START, samples: 2 } as RunEvent];
      for (let at = 0; at < 30; at += 1) {
        const sample = Math.floor(next() * 2);
        events.push(
          pick(next, [
            delta({ text: "a" }, sample),
            delta({ thinking: "b" }, sample),
            delta({ calls: [{ index: 0, arguments: "c" }] }, sample),
            delta({ text: "d", logprobs: [logprob("d")] }, sample),
            { event: "prompt", done: at, total: 30, cached: 1 },
            { event: "load", done: at, total: 30 },
          ] as RunEvent[]),
        );
      }
      events.push(done(0), done(1), { event: "end", state: "done" });
      let pieces = begun(2);
      for (let at = 0; at < events.length; ) {
        const end = at + 1 + Math.floor(next() * 5);
        pieces = reduce(pieces, events.slice(at, end), 1);
        at = end;
      }
      expect(pieces).toEqual(reduce(begun(2), events, 1));
    }
  });

  test("a snapshot replaces what is known", () => {
    const before = reduce(begun(1), [START, delta({ text: "lost" })], 0);
    const sample = {
      thinking: "t",
      text: "all of it",
      calls: [{ id: "x", name: "f", arguments: "{}" }],
      logprobs: [],
      done: null,
    };
    const { event: _, ...start } = START as Extract<RunEvent, { event: "start" }>;
    const state = reduce(before, [{ event: "snapshot", start, samples: [sample] }, delta({ text: "!" })], 1);
    expect(state.answers[0]).toMatchObject({ thinking: "t", text: "all of it!" });
    expect(state.answers[0]?.calls).toEqual([{ index: 0, id: "x", name: "f", arguments: "{}" }]);
  });

  test("progress goes away when the answer begins", () => {
    let state = reduce(begun(1), [START, { event: "load", done: 5, total: 10 }], 0);
    expect(state.load).toEqual({ done: 5, total: 10 });
    state = reduce(state, [{ event: "prompt", done: 100, total: 300, cached: 20 }], 0);
    expect(state).toMatchObject({ load: null, prompt: { done: 100, total: 300, cached: 20 } });
    state = reduce(state, [delta({ text: "x" })], 0);
    expect(state.prompt).toBeNull();
  });

  test("the thought is timed from its first to its last piece", () => {
    let state = reduce(begun(1), [START, delta({ thinking: "a" })], 1);
    state = reduce(state, [delta({ thinking: "b" })], 2);
    expect(state.answers[0]?.thoughtTo).toBeNull();
    state = reduce(state, [delta({ text: "c" })], 3.5);
    state = reduce(state, [delta({ text: "d" })], 9);
    expect(state.answers[0]).toMatchObject({ thoughtFrom: 1, thoughtTo: 3.5 });
  });

  test("an error is kept with what came before it", () => {
    const events: RunEvent[] = [
      START,
      delta({ text: "half" }),
      { event: "error", message: "out of memory", status: 500 },
      { event: "end", state: "failed" },
    ];
    const state = reduce(begun(1), events, 0);
    expect(state).toMatchObject({ ended: "failed", error: { message: "out of memory", status: 500 } });
    expect(state.answers[0]?.text).toBe("half");
  });

  test("states before stay as they are", () => {
    const first = reduce(begun(1), [START, delta({ text: "a", logprobs: [logprob("a")] })], 0);
    reduce(first, [delta({ text: "b", logprobs: [logprob("b")] }), done()], 1);
    expect(first.answers[0]).toMatchObject({ text: "a", done: null });
    expect(first.answers[0]?.logprobs).toHaveLength(1);
  });
});
