import { createHash } from "node:crypto";
import { expect, test } from "vitest";
import { digestInSlices, Sha256 } from "../../src/models/sha256";
import { random } from "../random";

const expected = (data: Uint8Array) => createHash("sha256").update(data).digest("hex");

test("digests of every length up to three blocks are those of Node", () => {
  const next = random(1);
  const data = Uint8Array.from({ length: 200 }, () => Math.floor(next() * 256));
  for (let length = 0; length <= data.length; length += 1) {
    const part = data.subarray(0, length);
    expect(new Sha256().update(part).hex()).toBe(expected(part));
  }
});

test("a digest does not depend on how the data is cut", () => {
  const next = random(2);
  const data = Uint8Array.from({ length: 5000 }, () => Math.floor(next() * 256));
  for (let round = 0; round < 20; round += 1) {
    const hash = new Sha256();
    for (let at = 0; at < data.length; ) {
      const end = at + 1 + Math.floor(next() * 300);
      hash.update(data.subarray(at, end));
      at = end;
    }
    expect(hash.hex()).toBe(expected(data));
  }
});

test("a file is read in slices and its progress told", async () => {
  const data = new Uint8Array(9 << 20).fill(7);
  const seen: number[] = [];
  expect(await digestInSlices(new Blob([data]), (done) => seen.push(done))).toBe(expected(data));
  expect(seen).toEqual([4 << 20, 8 << 20, 9 << 20]);
});
