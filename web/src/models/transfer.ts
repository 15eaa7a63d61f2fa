// What a pull, or making a model, has come to: a bar for each of its parts.
import type { TransferProgress } from "../api/types";

export interface Part {
  /** The digest, or what was said where there is none. */
  key: string;
  label: string;
  done: number;
  total: number;
}

export interface Transfer {
  name: string;
  state: "running" | "done" | "stopped" | "failed";
  /** What the server said last. */
  status: string;
  parts: Part[];
  error: string | null;
  warnings: string[];
  /** Bytes that there were at times in seconds, for the speed; the oldest first. */
  pace: { at: number; done: number }[];
}

export const begun = (name: string): Transfer => ({
  name,
  state: "running",
  status: "starting",
  parts: [],
  error: null,
  warnings: [],
  pace: [],
});

/** Seconds that the speed is the mean of. */
const PACE_S = 8;
const NO_DIGEST = /^0*$/;

/** Return the transfer after a message of the server; `now` is in seconds. */
export function withProgress(transfer: Transfer, said: TransferProgress, now: number): Transfer {
  const next: Transfer = {
    ...transfer,
    status: said.status,
    warnings: said.warnings ? [...transfer.warnings, ...said.warnings] : transfer.warnings,
  };
  if (said.status === "success") {
    next.state = "done";
    next.parts = transfer.parts.map((part) => ({ ...part, done: part.total }));
    return next;
  }
  if (!said.total) return next;
  const key = said.digest && !NO_DIGEST.test(said.digest) ? said.digest : said.status;
  const part: Part = { key, label: said.status, done: said.completed ?? 0, total: said.total };
  const known = transfer.parts.some((each) => each.key === key);
  next.parts = known
    ? transfer.parts.map((each) => (each.key === key ? part : each))
    : [...transfer.parts, part];
  const { done } = amountOf(next);
  next.pace = [...transfer.pace.filter(({ at }) => at > now - PACE_S), { at: now, done }];
  return next;
}

/** Return a transfer that ended before it was done. What the server has stays, so that it can be resumed. */
export const ended = (transfer: Transfer, state: "stopped" | "failed", error: string | null): Transfer => ({
  ...transfer,
  state,
  error,
  pace: [],
});

/** Return how many bytes are there, of those known of. */
export function amountOf({ parts }: Pick<Transfer, "parts">): { done: number; total: number } {
  return parts.reduce(
    (sum, { done, total }) => ({ done: sum.done + Math.min(done, total), total: sum.total + total }),
    { done: 0, total: 0 },
  );
}

/** Return bytes per second and the seconds left; null while that cannot be told. */
export function paceOf(transfer: Transfer): { speed: number; left_s: number } | null {
  const first = transfer.pace[0];
  const last = transfer.pace.at(-1);
  if (first === undefined || last === undefined || last.at - first.at < 1) return null;
  const speed = (last.done - first.done) / (last.at - first.at);
  if (!(speed > 0)) return null;
  const { done, total } = amountOf(transfer);
  return { speed, left_s: (total - done) / speed };
}
