import { expect, test } from "vitest";
import { wavOf } from "../../src/chat/wav";

test("a WAV file has the lengths, the rate and samples that are clipped", () => {
  const file = wavOf(new Float32Array([0, 1, -1, 2, 0.5]));
  const view = new DataView(file.buffer);
  const text = (at: number, length: number) => String.fromCharCode(...file.subarray(at, at + length));
  expect([text(0, 4), text(8, 8), text(36, 4)]).toEqual(["RIFF", "WAVEfmt ", "data"]);
  expect(view.getUint32(4, true)).toBe(file.length - 8);
  expect([view.getUint16(20, true), view.getUint16(22, true), view.getUint16(34, true)]).toEqual([1, 1, 16]);
  expect([view.getUint32(24, true), view.getUint32(28, true)]).toEqual([16_000, 32_000]);
  expect(view.getUint32(40, true)).toBe(10);
  const samples = [0, 1, 2, 3, 4].map((index) => view.getInt16(44 + 2 * index, true));
  expect(samples).toEqual([0, 32767, -32767, 32767, 16384]);
});
