// A run that is followed: its events are taken together once a frame.
import { type Signal, signal } from "@preact/signals";
import { ApiError, messageOf } from "../api/client";
import { runEvents } from "../api/runs";
import type { RunEvent } from "../api/types";
import { begun, type RunState, reduce } from "./run";

export class ActiveRun {
  readonly state: Signal<RunState>;
  /** Which attempt to connect again is under way; 0 while connected. */
  readonly attempt = signal(0);
  /** Settles when all answers are there; the run may go on to name the chat. */
  readonly answered: Promise<"ended" | "lost">;
  readonly ended: Promise<"ended" | "lost">;
  private settle: (how: "ended" | "lost") => void = () => {};
  private queue: RunEvent[] = [];
  private isPlanned = false;
  private readonly ending = new AbortController();
  private readonly startedAt = performance.now();

  constructor(
    readonly id: string,
    /** The messages that the answers become. */
    readonly messages: readonly string[],
    readonly model: string,
  ) {
    this.state = signal(begun(messages.length, model));
    this.answered = new Promise((resolve) => {
      this.settle = resolve;
    });
    this.ended = this.follow();
    void this.ended.then(this.settle);
  }

  /** Stop to follow; the run goes on. */
  leave(): void {
    this.ending.abort();
  }

  /** Take the events that have come, without waiting for the next frame. */
  flush(): void {
    this.isPlanned = false;
    if (this.queue.length === 0) return;
    const events = this.queue;
    this.queue = [];
    this.state.value = reduce(this.state.value, events, (performance.now() - this.startedAt) / 1000);
    if (this.state.value.answers.every((answer) => answer.done !== null)) this.settle("ended");
  }

  private async follow(): Promise<"ended" | "lost"> {
    try {
      const { signal } = this.ending;
      const onConnection = (attempt: number) => {
        this.attempt.value = attempt;
      };
      for await (const event of runEvents(this.id, { signal, onConnection })) {
        this.queue.push(event);
        this.plan();
      }
      this.flush();
      return this.state.value.ended === null ? "lost" : "ended";
    } catch (error) {
      this.flush();
      if (!(error instanceof ApiError && error.isMissing)) {
        this.state.value = { ...this.state.value, error: { message: messageOf(error), status: 0 } };
      }
      return "lost";
    }
  }

  private plan(): void {
    if (this.isPlanned) return;
    this.isPlanned = true;
    // Hidden pages have no frames.
    if (document.hidden) setTimeout(() => this.flush(), 250);
    else requestAnimationFrame(() => this.flush());
  }
}
