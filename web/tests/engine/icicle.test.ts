import { describe, expect, test } from "vitest";
import type { LivePrefix, LiveSequence } from "../../src/api/types";
import { barAt, barText, icicle, movedBar, runningThrough } from "../../src/engine/icicle";
import { random } from "../random";

const node = (parent: number, begin: number, end: number): LivePrefix => ({
  parent,
  begin,
  end,
  hits: 0,
  rows: [],
});

const tree = [
  node(-1, 0, 10),
  node(0, 10, 30),
  node(0, 10, 15),
  node(2, 15, 40),
  node(2, 15, 16),
  node(-1, 0, 5),
];

describe("icicle", () => {
  test("gives each branch a lane and each node the lanes of its branches", () => {
    const { bars, lanes, tokens } = icicle(tree);
    expect(lanes).toBe(4);
    expect(tokens).toBe(40);
    const places = Object.fromEntries(bars.map((bar) => [bar.node, [bar.lane, bar.lanes, bar.depth]]));
    expect(places).toEqual({
      0: [0, 3, 0],
      2: [0, 2, 1],
      3: [0, 1, 2],
      4: [1, 1, 2],
      1: [2, 1, 1],
      5: [3, 1, 0],
    });
  });

  test("never lays two bars over each other", () => {
    for (let seed = 0; seed < 40; seed += 1) {
      const next = random(seed);
      const nodes: LivePrefix[] = [];
      for (let index = 0; index < 60; index += 1) {
        const parent = Math.floor(next() * (index + 1)) - 1;
        const begin = parent < 0 ? 0 : nodes[parent]!.end;
        nodes.push(node(parent, begin, begin + 1 + Math.floor(next() * 9)));
      }
      const { bars, lanes } = icicle(nodes);
      expect(bars.length).toBe(nodes.length);
      const taken = new Set<string>();
      for (const bar of bars) {
        expect(bar.lane + bar.lanes).toBeLessThanOrEqual(lanes);
        for (let lane = bar.lane; lane < bar.lane + bar.lanes; lane += 1) {
          for (let token = bar.begin; token < bar.end; token += 1) {
            expect(taken.has(`${lane}/${token}`)).toBe(false);
            taken.add(`${lane}/${token}`);
          }
        }
      }
    }
  });

  test("lays out a conversation of thousands of turns", () => {
    const nodes = Array.from({ length: 2000 }, (_, index) => node(index - 1, index, index + 1));
    expect(icicle(nodes)).toMatchObject({ lanes: 1, tokens: 2000 });
  });

  test("of no nodes is empty", () => {
    expect(icicle([])).toEqual({ bars: [], lanes: 0, tokens: 0 });
  });
});

test("a place belongs to the bar that covers it", () => {
  const layout = icicle(tree);
  expect(barAt(layout, 12, 0)?.node).toBe(2);
  expect(barAt(layout, 35, 0)?.node).toBe(3);
  expect(barAt(layout, 35, 2)).toBe(null);
});

test("arrow keys go to the parent, the first branch and the neighbours", () => {
  const layout = icicle(tree);
  const go = (from: number, key: string) => {
    const to = movedBar(
      layout,
      tree,
      layout.bars.findIndex((bar) => bar.node === from),
      key,
    );
    return to === null ? null : layout.bars[to]!.node;
  };
  expect(go(0, "ArrowRight")).toBe(2);
  expect(go(3, "ArrowLeft")).toBe(2);
  expect(go(3, "ArrowDown")).toBe(4);
  expect(go(4, "ArrowDown")).toBe(1);
  expect(go(1, "ArrowUp")).toBe(2);
  expect(go(1, "ArrowRight")).toBe(1);
  expect(go(0, "ArrowLeft")).toBe(0);
  expect(go(0, "End")).toBe(5);
  expect(go(0, "a")).toBe(null);
});

test("all nodes on the way to a running sequence are in use", () => {
  const nodes = tree.map((each, index) => ({ ...each, rows: index === 3 ? [7] : index === 5 ? [8] : [] }));
  const sequence = (row: number, state: string) => ({ row, state }) as LiveSequence;
  expect([...runningThrough(nodes, [sequence(7, "running"), sequence(8, "idle")])].sort()).toEqual([0, 2, 3]);
});

test("a bar tells its tokens, its hits and who ends there", () => {
  expect(barText({ parent: -1, begin: 0, end: 10, hits: 1, rows: [0, 27] }, true)).toBe(
    "Tokens 0–9: reused 1 time; A, AB end here; in use now",
  );
  expect(barText({ parent: -1, begin: 0, end: 10, hits: 0, rows: [] }, false)).toBe(
    "Tokens 0–9: reused 0 times",
  );
});
