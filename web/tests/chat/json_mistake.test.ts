import { expect, test } from "vitest";
import { mistakeIn } from "../../src/chat/json_mistake";
import { pick, random } from "../random";

test.each([
  ['{\n  "a": oops\n}', "line 2, column 8: a value is expected, not “o”."],
  ["[1, 2", "line 1, column 6: a comma or ] is missing."],
  ['{"a": 1,}', "line 1, column 9: there is a comma before }."],
  ["{'a': 1}", "line 1, column 2: a name between double quotes is expected."],
  ['{"a" 1}', "line 1, column 6: a colon is missing behind a name."],
  ['["a\nb"]', "line 1, column 2: a text has no end, or a sign in it that needs a backslash."],
  ["1 2", "line 1, column 3: there is more behind the end."],
  ["", "line 1, column 1: a value is missing at the end."],
  ["[".repeat(10_000), "nested too deeply"],
])("%j", (text, said) => {
  expect(mistakeIn(text)).toContain(said);
});

test("texts are JSON exactly where the browser reads them", () => {
  const next = random(7);
  const pieces = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    '"a"',
    '"',
    "1",
    "-0.5e3",
    "01",
    "true",
    "nul",
    " ",
    "\n",
    "\\",
  ];
  for (let round = 0; round < 5000; round += 1) {
    const text = Array.from({ length: 1 + Math.floor(next() * 8) }, () => pick(next, pieces)).join("");
    let isJson = true;
    try {
      JSON.parse(text);
    } catch {
      isJson = false;
    }
    // What is JSON is said to go on behind its end, at its end.
    const lines = text.split("\n");
    const end = `line ${lines.length}, column ${lines.at(-1)!.length + 1}: there is more behind the end.`;
    expect(mistakeIn(text) === end, JSON.stringify(text)).toBe(isJson);
  }
});
