import { describe, expect, test } from "vitest";
import { LineReader, linesOf } from "../../src/api/lines";

const encode = (text: string) => new TextEncoder().encode(text);

/** Return the lines of `bytes` cut before each of the places. */
function linesCut(bytes: Uint8Array, places: number[]): string[] {
  const reader = new LineReader();
  const lines: string[] = [];
  let at = 0;
  for (const place of [...places, bytes.length]) {
    lines.push(...reader.push(bytes.subarray(at, place)));
    at = place;
  }
  return [...lines, ...reader.finish()];
}

describe("LineReader", () => {
  const text = '{"a": "é 漢 🦙"}\r\nsecond\rthird\n\nlast without an end 🏔';
  const lines = ['{"a": "é 漢 🦙"}', "second", "third", "", "last without an end 🏔"];

  test("reads the same lines wherever the bytes are cut once", () => {
    const bytes = encode(text);
    for (let place = 0; place <= bytes.length; place += 1) expect(linesCut(bytes, [place])).toEqual(lines);
  });

  test("reads the same lines byte by byte", () => {
    const bytes = encode(text);
    expect(linesCut(bytes, [...bytes.keys()])).toEqual(lines);
  });

  test("does not take the LF of a CRLF in the next piece for an empty line", () => {
    const reader = new LineReader();
    expect(reader.push(encode("one\r"))).toEqual(["one"]);
    expect(reader.push(encode("\ntwo\n"))).toEqual(["two"]);
    expect(reader.push(encode("\n"))).toEqual([""]);
  });

  test("gives no line for nothing", () => {
    expect(linesCut(new Uint8Array(), [])).toEqual([]);
  });

  test("ends the body when its reader stops early", async () => {
    let cancelled = false;
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => controller.enqueue(encode("one\ntwo\n")),
      cancel: () => {
        cancelled = true;
      },
    });
    for await (const line of linesOf(body)) {
      expect(line).toBe("one");
      break;
    }
    expect(cancelled).toBe(true);
  });
});
