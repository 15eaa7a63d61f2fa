import { expect, test } from "vitest";
import { OPTIONS, readOption, typed } from "../../src/chat/option_table";

const option = (name: string) => OPTIONS.find((each) => each.name === name)!;

test("every option has a name of its own, a meaning and a default", () => {
  expect(new Set(OPTIONS.map((each) => each.name)).size).toBe(OPTIONS.length);
  for (const each of OPTIONS) {
    expect(each.meaning).toMatch(/^[A-Z“1-9"0-9]/);
    expect(each.initial).not.toBe("");
  }
});

test.each([
  ["temperature", "0.5", { value: 0.5 }],
  ["temperature", " ", { value: undefined }],
  ["temperature", "hot", { problem: "It must be a number." }],
  ["top_p", "2", { problem: "It must be from 0 to 1." }],
  ["top_k", "1.5", { problem: "It must be a whole number." }],
  ["num_ctx", "0", { problem: "It must be at least 1." }],
  ["stop", "a\\nb\nc", { value: ["a\nb", "c"] }],
  ["logit_bias", '{"1": -5}', { value: { "1": -5 } }],
  ["logit_bias", "{", { problem: "It must be JSON." }],
  ["keep_alive", "-1", { value: -1 }],
  ["keep_alive", "10m", { value: "10m" }],
])("%s typed as %j", (name, text, read) => {
  expect(readOption(option(name), text)).toEqual(read);
});

test("what is kept is typed so that it reads as the same", () => {
  for (const [name, value] of [
    ["stop", ["a\nb", "c\\d", "e"]],
    ["seed", 5],
    ["banned_tokens", [1, 2]],
    ["draft", "small"],
  ] as const) {
    expect(readOption(option(name), typed(option(name), value))).toEqual({ value });
  }
});
