// What the events of a run add up to. Pure: the same events give the same state, however they are bundled.
import type { CallPart, RunEvent, RunStats, TokenLogprob } from "../api/types";

export interface Answer {
  thinking: string;
  text: string;
  calls: CallPart[];
  logprobs: readonly TokenLogprob[];
  done: { reason: string; stats: RunStats; warnings: string[] } | null;
  /** Seconds since the run began, by this page's clock: when the thought began and ended. */
  thoughtFrom: number | null;
  thoughtTo: number | null;
}

export interface RunState {
  model: string;
  answers: readonly Answer[];
  /** Shares of the work before the answers begin, while it is under way. */
  load: { done: number; total: number } | null;
  prompt: { done: number; total: number; cached: number } | null;
  error: { message: string; status: number } | null;
  title: string | null;
  /** How the run ended: "done", "stopped" or "failed"; null while it goes on. */
  ended: string | null;
}

const NO_ANSWER: Answer = {
  thinking: "",
  text: "",
  calls: [],
  logprobs: [],
  done: null,
  thoughtFrom: null,
  thoughtTo: null,
};

export const begun = (samples: number, model = ""): RunState => ({
  model,
  answers: Array.from({ length: samples }, () => NO_ANSWER),
  load: null,
  prompt: null,
  error: null,
  title: null,
  ended: null,
});

/** Return the state after `events`, which arrived `at` seconds after the run began. */
export function reduce(state: RunState, events: readonly RunEvent[], at: number): RunState {
  const work = new Reduction(state, at);
  for (const event of events) work.take(event);
  return work.result();
}

class Reduction {
  private readonly state: RunState;
  /** Answers that change get copies of their lists once a bundle, not once a token. */
  private readonly changed = new Map<number, Answer & { logprobs: TokenLogprob[] }>();

  constructor(
    before: RunState,
    private readonly at: number,
  ) {
    this.state = { ...before };
  }

  result(): RunState {
    if (this.changed.size === 0) return this.state;
    return {
      ...this.state,
      answers: this.state.answers.map((answer, index) => this.changed.get(index) ?? answer),
    };
  }

  take(event: RunEvent): void {
    const { state } = this;
    switch (event.event) {
      case "start":
        state.model = event.model;
        this.grow(event.samples);
        return;
      case "load":
        state.load = event.done < event.total ? { done: event.done, total: event.total } : null;
        return;
      case "prompt":
        state.load = null;
        state.prompt = { done: event.done, total: event.total, cached: event.cached };
        return;
      case "delta":
        this.add(event);
        return;
      case "done": {
        const { reason, stats, warnings } = event;
        const answer = this.answer(event.sample);
        answer.done = { reason, stats, warnings };
        if (answer.thoughtFrom !== null) answer.thoughtTo ??= this.at;
        return;
      }
      case "title":
        state.title = event.title;
        return;
      case "error":
        state.error = { message: event.message, status: event.status };
        return;
      case "snapshot": {
        const { start } = event as { start?: { model: string } };
        if (start !== undefined) state.model = start.model;
        state.load = null;
        this.changed.clear();
        state.answers = event.samples.map((sample) => ({
          ...NO_ANSWER,
          thinking: sample.thinking,
          text: sample.text,
          calls: sample.calls.map((call, index) => ({ ...call, index })),
          logprobs: sample.logprobs,
          done: sample.done ?? null,
        }));
        return;
      }
      case "end":
        state.ended = (event as { state?: string }).state ?? (state.error === null ? "done" : "failed");
        state.load = null;
        state.prompt = null;
    }
  }

  private add(event: Extract<RunEvent, { event: "delta" }>): void {
    const { state } = this;
    state.load = null;
    if (state.answers.length <= 1 || (event.text ?? "") !== "") state.prompt = null;
    const answer = this.answer(event.sample);
    if (event.thinking) {
      answer.thoughtFrom ??= this.at;
      answer.thinking += event.thinking;
      answer.thoughtTo = null;
    }
    if (event.text) {
      if (answer.thoughtFrom !== null) answer.thoughtTo ??= this.at;
      answer.text += event.text;
    }
    if (event.calls?.length) {
      if (answer.thoughtFrom !== null) answer.thoughtTo ??= this.at;
      answer.calls = withCalls(answer.calls, event.calls);
    }
    if (event.logprobs?.length) answer.logprobs.push(...event.logprobs);
  }

  private answer(index: number): Answer & { logprobs: TokenLogprob[] } {
    let answer = this.changed.get(index);
    if (answer === undefined) {
      this.grow(index + 1);
      const before = this.state.answers[index]!;
      answer = { ...before, logprobs: [...before.logprobs] };
      this.changed.set(index, answer);
    }
    return answer;
  }

  private grow(samples: number): void {
    const { answers } = this.state;
    if (answers.length >= samples) return;
    this.state.answers = [...answers, ...Array<Answer>(samples - answers.length).fill(NO_ANSWER)];
  }
}

function withCalls(calls: readonly CallPart[], parts: readonly CallPart[]): CallPart[] {
  const next = calls.map((call) => ({ ...call }));
  for (const part of parts) {
    const call = next.find((each) => each.index === part.index);
    if (call === undefined) next.push({ ...part, arguments: part.arguments ?? "" });
    else {
      if (part.id) call.id = part.id;
      if (part.name) call.name = part.name;
      call.arguments = (call.arguments ?? "") + (part.arguments ?? "");
    }
  }
  return next;
}
