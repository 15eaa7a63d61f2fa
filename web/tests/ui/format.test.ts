import { describe, expect, test } from "vitest";
import { ago, bytes, duration, plural, short } from "../../src/ui/format";

test.each([
  [0, "0 B"],
  [999, "999 B"],
  [1000, "1.0 KB"],
  [999_400, "999 KB"],
  [999_600, "1.0 MB"],
  [4_661_224_676, "4.7 GB"],
  [123_000_000_000, "123 GB"],
  [Number.NaN, ""],
])("%d bytes are %s", (size, text) => expect(bytes(size)).toBe(text));

test.each([
  [0.08, "80 ms"],
  [1.24, "1.2 s"],
  [42, "42 s"],
  [59.6, "1 min"],
  [200, "3 min 20 s"],
  [3600, "1 h"],
  [7500, "2 h 5 min"],
  [90_000, "1 d 1 h"],
])("%d seconds are %s", (seconds, text) => expect(duration(seconds)).toBe(text));

test.each([
  [999, "999"],
  [1234, "1.2k"],
  [99_960, "100k"],
  [1_500_000, "1.5M"],
])("%d in little room is %s", (value, text) => expect(short(value)).toBe(text));

test("one thing is not many", () => {
  expect([plural(1, "chat"), plural(0, "chat"), plural(2000, "chat")]).toEqual([
    "1 chat",
    "0 chats",
    "2,000 chats",
  ]);
});

describe("ago", () => {
  const now = new Date(2025, 5, 20, 15).getTime() / 1000;
  const at = (...when: [number, number, number, number]) => new Date(...when).getTime() / 1000;

  test.each([
    [now - 20, "just now"],
    [now + 500, "just now"],
    [now - 600, "10 min ago"],
    [at(2025, 5, 20, 12), "3 h ago"],
    [at(2025, 5, 19, 23), "yesterday"],
    [at(2025, 5, 17, 1), "3 days ago"],
    [at(2025, 2, 12, 1), "12 Mar"],
    [at(2024, 2, 12, 1), "12 Mar 2024"],
  ])("%d is %s", (time, text) => expect(ago(time, now)).toBe(text));
});
