import { client, NetworkError } from "./client";
import { linesOf } from "./lines";

export interface ServerEvent {
  event: string;
  data: string;
  /** The id of the newest event with one, or "". */
  id: string;
}

/** Puts lines of text/event-stream together to events (WHATWG HTML, 9.2.6). */
export class EventParser {
  /** In milliseconds, if the server said how long to wait before connecting again. */
  retry: number | null = null;
  private event = "";
  private data: string[] = [];
  private id: string;

  constructor(lastId = "") {
    this.id = lastId;
  }

  /** Take a line; return the event that it ends, if it ends one. */
  push(line: string): ServerEvent | null {
    if (line === "") return this.dispatch();
    const colon = line.indexOf(":");
    if (colon === 0) return null; // a comment, which keeps the connection open
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "data") this.data.push(value);
    else if (field === "event") this.event = value;
    else if (field === "id" && !value.includes("\0")) this.id = value;
    else if (field === "retry" && /^\d+$/.test(value)) this.retry = Number(value);
    return null;
  }

  private dispatch(): ServerEvent | null {
    const { event, data } = this;
    this.event = "";
    this.data = [];
    if (data.length === 0) return null;
    return { event: event || "message", data: data.join("\n"), id: this.id };
  }
}

export interface EventOptions {
  signal?: AbortSignal;
  /** The last event that the caller has; the stream goes on after it. */
  after?: string;
  /** Whether the event is the last one. Without this, the stream is opened again whenever it ends. */
  isLast?: (event: ServerEvent) => boolean;
  /** Told of the connection: attempt 0 is an open one, others are waiting to be opened again. */
  onConnection?: (attempt: number) => void;
}

/** How long to wait before the attempt with this number, in milliseconds: 0.25 s doubled up to 8 s. */
export function backoff(attempt: number, random: () => number = Math.random): number {
  const longest = Math.min(8000, 250 * 2 ** (attempt - 1));
  return longest * (0.75 + 0.25 * random());
}

/**
 * Yield the events of a stream, opened again after the last one received whenever the connection breaks.
 *
 * Errors of the server end it as `ApiError`, but for 502, 503 and 504, which a restarting server or its proxy sends.
 */
export async function* events(path: string, options: EventOptions = {}): AsyncGenerator<ServerEvent> {
  const { signal, isLast, onConnection } = options;
  let lastId = options.after ?? "";
  let attempt = 0;
  while (!signal?.aborted) {
    let retry: number | null = null;
    try {
      const headers: Record<string, string> = { Accept: "text/event-stream" };
      if (lastId !== "") headers["Last-Event-ID"] = lastId;
      const response = await client.fetch(path, { headers, signal });
      if (response.body === null) throw new NetworkError("the server sent nothing");
      const parser = new EventParser(lastId);
      onConnection?.(0);
      for await (const line of linesOf(response.body)) {
        const event = parser.push(line);
        retry = parser.retry;
        if (event === null) continue;
        attempt = 0;
        lastId = event.id;
        yield event;
        if (isLast?.(event)) return;
      }
    } catch (error) {
      if (signal?.aborted) return;
      if (!client.isTemporary(error)) throw error;
    }
    attempt += 1;
    onConnection?.(attempt);
    await pause(retry ?? backoff(attempt), signal);
  }
}

/** Wait, but no longer than until the machine is online again or the signal ends it. */
function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      globalThis.removeEventListener?.("online", end);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, milliseconds);
    globalThis.addEventListener?.("online", end);
    signal?.addEventListener("abort", end);
    if (signal?.aborted) end();
  });
}
