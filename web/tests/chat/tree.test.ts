import { describe, expect, test } from "vitest";
import type { Message } from "../../src/api/types";
import {
  beside,
  leafFrom,
  pathOf,
  refreshed,
  showing,
  siblingsOf,
  treeOf,
  withMessage,
} from "../../src/chat/tree";
import { random } from "../random";
import { message } from "./messages";

const MESSAGES = [
  message("q", null),
  message("a1", "q", { role: "assistant" }),
  message("a2", "q", { role: "assistant" }),
  message("q2", "a1"),
  message("b", "q2", { role: "assistant" }),
];
const ids = (messages: Message[]) => messages.map((each) => each.id);

describe("the branches of a chat", () => {
  test("the path leads from the first message to the leaf", () => {
    expect(ids(pathOf(treeOf(MESSAGES, "b")))).toEqual(["q", "a1", "q2", "b"]);
    expect(ids(pathOf(treeOf(MESSAGES, "a2")))).toEqual(["q", "a2"]);
    expect(pathOf(treeOf([], null))).toEqual([]);
  });

  test("a leaf that is gone is the newest message", () => {
    expect(treeOf(MESSAGES, "gone").leaf).toBe("b");
  });

  test("messages with the same parent are siblings, oldest first", () => {
    const tree = treeOf(MESSAGES, "b");
    expect(siblingsOf(tree, "a2")).toEqual(["a1", "a2"]);
    expect(siblingsOf(tree, "q")).toEqual(["q"]);
  });

  test("stepping aside shows the other branch to its end, and back again", () => {
    const tree = treeOf(MESSAGES, "b");
    const other = beside(tree, "a1", 1);
    expect(other.leaf).toBe("a2");
    expect(beside(other, "a2", -1).leaf).toBe("b");
    expect(beside(tree, "a1", -1)).toBe(tree);
  });

  test("a message on the branch that is shown keeps its end", () => {
    const tree = withMessage(treeOf(MESSAGES, "b"), message("other", "q2", { role: "assistant" }), true);
    expect(showing(tree, "a1").leaf).toBe("b");
    expect(showing(tree, "a2").leaf).toBe("a2");
  });

  test("a new message becomes the leaf, a known one is replaced", () => {
    const tree = withMessage(treeOf(MESSAGES, "b"), message("new", "b"));
    expect(tree.leaf).toBe("new");
    const changed = withMessage(tree, message("q", null, { content: "changed" }));
    expect(changed.leaf).toBe("new");
    expect(changed.byId.get("q")?.content).toBe("changed");
    expect(changed.below).toBe(tree.below);
  });

  test("reading again keeps the branch and follows what another tab added to it", () => {
    const tree = treeOf(MESSAGES, "a2");
    const next = refreshed(tree, [...MESSAGES, message("more", "a2")], "b");
    expect(next.leaf).toBe("more");
    expect(refreshed(tree, MESSAGES.slice(0, 2), "a1").leaf).toBe("a1");
  });

  test("a message without its parent still shows", () => {
    const tree = treeOf([message("x", "gone"), message("y", "x")], "y");
    expect(ids(pathOf(tree))).toEqual(["x", "y"]);
    expect(siblingsOf(tree, "x")).toEqual(["x"]);
  });

  test("a damaged chat whose messages go in a circle ends", () => {
    const tree = treeOf([message("x", "y"), message("y", "x")], "x");
    expect(ids(pathOf(tree)).sort()).toEqual(["x", "y"]);
    expect(["x", "y"]).toContain(leafFrom(tree, "x"));
  });

  test("growing message by message is the same as reading at once", () => {
    const next = random(4);
    for (let round = 0; round < 100; round += 1) {
      const all: Message[] = [];
      for (let at = 0; at < 30; at += 1) {
        const parent = next() < 0.1 ? null : (all[Math.floor(next() * all.length)]?.id ?? null);
        all.push(message(`m${at}`, parent));
      }
      const grown = all.reduce((tree, each) => withMessage(tree, each), treeOf([], null));
      expect(grown).toEqual(treeOf(all, all.at(-1)!.id));
      for (const each of all) {
        const leaf = leafFrom(grown, each.id);
        expect(ids(pathOf(grown, leaf))).toContain(each.id);
        expect(grown.below.has(leaf)).toBe(false);
      }
    }
  });
});
