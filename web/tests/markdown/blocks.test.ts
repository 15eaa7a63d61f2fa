import { describe, expect, test } from "vitest";
import { append, blocksOf, EMPTY, type Splitting, split } from "../../src/markdown/blocks";
import { pick, random } from "../random";

const PIECES = [
  "A paragraph with **bold** text.", "\n", "\n", "\n\n", "# Heading", "## Sub\n", "- item", "- ", "* star", "1. one",
  "2) two", "  continued", "    indented", "\t", "```python", "```", "````md", "~~~", "~~~\n", "print(1)\n", "$$", "$$x^2$$",
  "\\[", "\\]", "a + b", "> quote", "| a | b |", "|---|---|", "---", "***", "===", "[x]: https://example.org", "[x]", "`", "\r\n",
  "<div>", "日本語", "🙂", " ", "   ", "1.", "#", "##", "\\", "$",
]; // biome-ignore format: a list of words

const text = (next: () => number) =>
  Array.from(
    { length: 1 + Math.floor(next() * 40) },
    () => pick(next, PIECES) + (next() < 0.3 ? "\n" : ""),
  ).join("");

function cut(whole: string, next: () => number): Splitting {
  let splitting = EMPTY;
  for (let at = 0; at < whole.length; ) {
    const end = at + 1 + Math.floor(next() * next() * 20);
    splitting = append(splitting, whole.slice(at, end));
    at = end;
  }
  return splitting;
}

describe("a text split into blocks", () => {
  test("has the same blocks however it is cut", () => {
    const next = random(1);
    for (let round = 0; round < 3000; round += 1) {
      const whole = text(next);
      expect(blocksOf(cut(whole, next)), JSON.stringify(whole)).toEqual(blocksOf(append(EMPTY, whole)));
    }
  });

  test("keeps every block but the last as it is when more arrives", () => {
    const next = random(2);
    for (let round = 0; round < 500; round += 1) {
      let splitting = EMPTY;
      for (const piece of text(next)) {
        const after = append(splitting, piece);
        splitting.done.forEach((block, index) => {
          expect(after.done[index]).toBe(block);
        });
        splitting = after;
      }
    }
  });

  test("loses nothing but empty lines", () => {
    const next = random(3);
    const dense = (value: string) => value.replace(/\s+/g, "");
    for (let round = 0; round < 1000; round += 1) {
      const whole = text(next);
      expect(
        dense(
          split(whole)
            .map((block) => block.raw)
            .join("\n"),
        ),
      ).toBe(dense(whole));
    }
  });

  test.each([
    ["one\n\ntwo", ["one\n\n", "two"]],
    ["# A\ntext", ["# A\n", "text"]],
    ["text\n- a\n- b", ["text\n", "- a\n- b"]],
    ["- a\n\n- b\n\nafter", ["- a\n\n- b\n\n", "after"]],
    ["- a\n  ```\n\n  x\n\n  ```\n- b", ["- a\n  ```\n\n  x\n\n  ```\n- b"]],
    ["1. ```js\n   a\n\n   b\n   ```\n2. c\n", ["1. ```js\n   a\n\n   b\n   ```\n2. c\n"]],
    ["a\n---\nb", ["a\n---\nb"]],
    ["> a\n> b\n\nc", ["> a\n> b\n\n", "c"]],
    ["    x\n\n    y\nz", ["    x\n\n    y\n", "z"]],
    ["| a |\n|---|\n| 1 |\n\nb", ["| a |\n|---|\n| 1 |\n\n", "b"]],
  ])("%j", (whole, raws) => {
    expect(split(whole).map((block) => block.raw)).toEqual(raws);
  });

  test("takes code apart from its fences", () => {
    expect(split("```python x\nprint(1)\n\n# 2\n```\nafter")).toEqual([
      {
        kind: "code",
        raw: "```python x\nprint(1)\n\n# 2\n```\n",
        info: "python x",
        text: "print(1)\n\n# 2",
        closed: true,
      },
      { kind: "text", raw: "after" },
    ]);
    expect(split("````\n```\n````")[0]).toMatchObject({ text: "```", closed: true });
    expect(split("```\na")[0]).toMatchObject({ text: "a", closed: false });
    expect(split("```\n```")[0]).toMatchObject({ text: "", closed: true });
  });

  test("takes formulas apart from their marks", () => {
    expect(split("$$\nx\n$$\n").at(0)).toMatchObject({ kind: "math", text: "x" });
    expect(split("\\[ y \\]").at(0)).toMatchObject({ kind: "math", text: "y" });
    expect(split("$$ no formula\n\nafter").map((block) => block.kind)).toEqual(["text", "text"]);
    expect(split("$$x$$ and more").at(0)).toMatchObject({ kind: "text" });
  });

  test("goes on in another block when a list is long", () => {
    const list = Array.from({ length: 2000 }, (_, index) => `${index + 1}. an item of some length\n`).join(
      "",
    );
    const blocks = split(list);
    expect(blocks.length).toBeGreaterThan(5);
    expect(Math.max(...blocks.map((block) => block.raw.length))).toBeLessThan(6100);
  });

  test("collects definitions of links", () => {
    expect(blocksOf(append(EMPTY, "[a][b]\n\n[b]: https://example.org\n")).definitions).toBe(
      "[b]: https://example.org\n",
    );
  });

  test("takes a long answer in small pieces in little time", () => {
    const paragraph = "Some words of an answer that goes on and on, with `code` and **more**. ".repeat(6);
    const whole = Array.from({ length: 480 }, (_, index) => `## ${index}\n\n${paragraph}\n\n`).join("");
    expect(whole.length).toBeGreaterThan(200_000);
    const begun = performance.now();
    let splitting = EMPTY;
    for (let at = 0; at < whole.length; at += 4) splitting = append(splitting, whole.slice(at, at + 4));
    expect(performance.now() - begun).toBeLessThan(2000);
    expect(splitting.done.length).toBe(960);
  });
});
