import { afterEach, describe, expect, test, vi } from "vitest";
import { ApiError, client, NetworkError } from "../../src/api/client";
import { backoff, EventParser, events, type ServerEvent } from "../../src/api/event_stream";
import { LineReader } from "../../src/api/lines";

const encode = (text: string) => new TextEncoder().encode(text);

function parsed(text: string, parser = new EventParser()): ServerEvent[] {
  return text
    .split("\n")
    .slice(0, -1)
    .flatMap((line) => parser.push(line) ?? []);
}

describe("EventParser", () => {
  test("puts the lines of an event together", () => {
    expect(parsed('id: 7\nevent: delta\ndata: {"a":\ndata: 1}\n\n')).toEqual([
      { event: "delta", data: '{"a":\n1}', id: "7" },
    ]);
  });

  test("takes off one space after the colon and no more", () => {
    expect(parsed("data:  two\ndata:none\ndata\n\n")[0]?.data).toBe(" two\nnone\n");
  });

  test("skips comments and events without data", () => {
    expect(parsed(": keep open\n\nevent: nothing\n\ndata: x\n\n")).toEqual([
      { event: "message", data: "x", id: "" },
    ]);
  });

  test("keeps the id for later events, and that of an earlier connection", () => {
    const found = parsed("data: a\n\nid: 3\ndata: b\n\ndata: c\n\n", new EventParser("2"));
    expect(found.map(({ id }) => id)).toEqual(["2", "3", "3"]);
  });

  test("reads the time to wait, if it is a number", () => {
    const parser = new EventParser();
    parsed("retry: 1500\nretry: soon\n", parser);
    expect(parser.retry).toBe(1500);
  });

  test("drops an event that a broken connection cut", () => {
    expect(parsed("data: whole\n\ndata: half\n")).toHaveLength(1);
  });

  test("finds the same events wherever the bytes are cut", () => {
    const bytes = encode(': hi\r\n\r\nid: 1\r\nevent: delta\r\ndata: {"text": "🦙 é"}\r\n\r\ndata: end\n\n');
    for (let place = 0; place <= bytes.length; place += 1) {
      const [lines, parser] = [new LineReader(), new EventParser()];
      const all = [...lines.push(bytes.subarray(0, place)), ...lines.push(bytes.subarray(place))];
      expect(all.flatMap((line) => parser.push(line) ?? [])).toEqual([
        { event: "delta", data: '{"text": "🦙 é"}', id: "1" },
        { event: "message", data: "end", id: "1" },
      ]);
    }
  });
});

describe("backoff", () => {
  test("doubles up to eight seconds", () => {
    const waits = [1, 2, 3, 4, 5, 6, 7, 50].map((attempt) => backoff(attempt, () => 1));
    expect(waits).toEqual([250, 500, 1000, 2000, 4000, 8000, 8000, 8000]);
  });

  test("varies by a quarter, so that clients do not come all at once", () => {
    expect(backoff(3, () => 0)).toBe(750);
  });
});

describe("events", () => {
  afterEach(() => void vi.restoreAllMocks());

  /** Have the server answer with these, one a connection; return the Last-Event-ID of each. */
  function answers(...replies: (string | Error)[]): string[] {
    const asked: string[] = [];
    vi.spyOn(client, "fetch").mockImplementation(async (_path, options) => {
      asked.push(options?.headers?.["Last-Event-ID"] ?? "");
      const reply = replies[asked.length - 1];
      if (reply === undefined) throw new Error("asked once too often");
      if (reply instanceof Error) throw reply;
      return new Response(reply);
    });
    return asked;
  }

  const isLast = ({ event }: ServerEvent) => event === "end";

  test("goes on after the last event when the connection breaks", async () => {
    const asked = answers(
      "retry: 1\nid: 1\ndata: a\n\nid: 2\ndata: b\n\nid: 3\ndata: cut",
      "retry: 1\nid: 3\ndata: c\n\n",
      "id: 4\nevent: end\ndata: {}\n\n",
    );
    const found = [];
    for await (const event of events("path", { isLast })) found.push(event.data);
    expect(found).toEqual(["a", "b", "c", "{}"]);
    expect(asked).toEqual(["", "2", "3"]);
  });

  test("begins after the event that the caller has", async () => {
    const asked = answers("event: end\ndata: {}\n\n");
    for await (const _ of events("path", { after: "41", isLast }));
    expect(asked).toEqual(["41"]);
  });

  test("tries again while the server is away, and tells of it", async () => {
    vi.useFakeTimers();
    try {
      answers(new NetworkError(), new ApiError(503, "starting"), "event: end\ndata: {}\n\n");
      const attempts: number[] = [];
      const reading = (async () => {
        for await (const _ of events("path", { isLast, onConnection: (attempt) => attempts.push(attempt) }));
      })();
      await vi.runAllTimersAsync();
      await reading;
      expect(attempts).toEqual([1, 2, 0]);
    } finally {
      vi.useRealTimers();
    }
  });

  test("ends with an error of the server", async () => {
    answers(new ApiError(404, "no such run"));
    await expect(events("path").next()).rejects.toThrow("no such run");
  });

  test("ends quietly when the caller gives up", async () => {
    answers("id: 1\ndata: a\n\n");
    const ending = new AbortController();
    const reading = events("path", { signal: ending.signal });
    expect((await reading.next()).value?.data).toBe("a");
    ending.abort();
    expect((await reading.next()).done).toBe(true);
  });
});
