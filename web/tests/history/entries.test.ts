import { describe, expect, test } from "vitest";
import type { ChatEntry } from "../../src/api/types";
import { isIn, sections, tagsIn, withHead, without, withPage } from "../../src/history/entries";

function chat(id: string, changes: Partial<ChatEntry> = {}): ChatEntry {
  const times = { created: 0, updated: 0 };
  return {
    id,
    title: id,
    titled: true,
    ...times,
    pinned: false,
    folder: "",
    tags: [],
    model: "",
    ...changes,
  };
}

const ids = (list: ChatEntry[]) => list.map(({ id }) => id).join("");

describe("the list of chats", () => {
  const list = [
    chat("p", { pinned: true, updated: 1 }),
    chat("a", { updated: 9 }),
    chat("b", { updated: 5 }),
    chat("c", { updated: 2 }),
  ];

  test("puts a new chat after the pinned ones", () => {
    expect(ids(withHead(list, chat("n", { updated: 10 })))).toBe("pnabc");
  });

  test("moves a chat that was used to the top", () => {
    expect(ids(withHead(list, chat("c", { updated: 10 })))).toBe("pcab");
  });

  test("moves a chat that was pinned above the others", () => {
    expect(ids(withHead(list, chat("b", { updated: 5, pinned: true })))).toBe("bpac");
  });

  test("puts the oldest one last", () => {
    expect(ids(withHead(list, chat("n", { updated: 0.5 })))).toBe("pabcn");
  });

  test("keeps the snippet of a search", () => {
    const found = [chat("a", { snippet: [{ text: "x", hit: true }] })];
    expect(withHead(found, chat("a", { title: "new" }))[0]).toMatchObject({
      title: "new",
      snippet: [{ text: "x" }],
    });
  });

  test("has no chat twice when pages overlap", () => {
    expect(ids(withPage(list, [chat("c"), chat("d")]))).toBe("pabcd");
  });

  test("loses a deleted chat", () => {
    expect(ids(without(list, "a"))).toBe("pbc");
  });

  test("knows what belongs in a folder or to a tag", () => {
    const one = chat("x", { folder: "Work", tags: ["idea"] });
    expect([isIn(one, "", ""), isIn(one, "Work", ""), isIn(one, "Home", ""), isIn(one, "", "idea")]).toEqual([
      true,
      true,
      false,
      true,
    ]);
  });
});

describe("sections", () => {
  const now = new Date(2025, 5, 20, 15).getTime() / 1000;
  const at = (...when: [number, number, number, number]) => new Date(...when).getTime() / 1000;

  test("stand under headings by days, not by hours", () => {
    const list = [
      chat("p", { pinned: true, updated: at(2020, 0, 1, 0) }),
      chat("a", { updated: at(2025, 5, 20, 0) }),
      chat("b", { updated: at(2025, 5, 19, 23) }),
      chat("c", { updated: at(2025, 5, 14, 9) }),
      chat("d", { updated: at(2025, 4, 25, 9) }),
      chat("e", { updated: at(2025, 2, 1, 9) }),
      chat("f", { updated: at(2023, 2, 1, 9) }),
    ];
    expect(sections(list, now).map(({ title, chats }) => [title, ids(chats)])).toEqual([
      ["Pinned", "p"],
      ["Today", "a"],
      ["Yesterday", "b"],
      ["Last 7 days", "c"],
      ["Last 30 days", "d"],
      ["March", "e"],
      ["March 2023", "f"],
    ]);
  });

  test("count a time ahead of the clock as today", () => {
    expect(sections([chat("a", { updated: now + 100_000 })], now)[0]?.title).toBe("Today");
  });
});

test("tags are told apart by commas, each once", () => {
  expect(tagsIn(" idea, #later,, idea , two words ")).toEqual(["idea", "later", "two words"]);
});
