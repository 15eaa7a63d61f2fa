import { describe, expect, test } from "vitest";
import type { LiveSequence } from "../../src/api/types";
import {
  blocksOf,
  blockText,
  gridFor,
  holdingsIn,
  layersText,
  moved,
  type Run,
  rowName,
  segmentsOf,
} from "../../src/engine/cells";
import { random } from "../random";

describe("segmentsOf", () => {
  test("leaves runs that do not overlap as they are, in order", () => {
    expect(
      segmentsOf([
        [1, 10, 5, 0],
        [0, 0, 10, 0],
      ]),
    ).toEqual([
      { first: 0, count: 10, rows: [0] },
      { first: 10, count: 5, rows: [1] },
    ]);
  });

  test("tells who shares which cells", () => {
    expect(
      segmentsOf([
        [0, 0, 10, 0],
        [1, 0, 6, 0],
        [2, 4, 6, 0],
      ]),
    ).toEqual([
      { first: 0, count: 4, rows: [0, 1] },
      { first: 4, count: 2, rows: [0, 1, 2] },
      { first: 6, count: 4, rows: [0, 2] },
    ]);
  });

  test("agrees with looking at every cell, for runs laid out at random", () => {
    for (let seed = 0; seed < 60; seed += 1) {
      const next = random(seed);
      const runs: Run[] = [];
      for (let row = 0; row < 4; row += 1) {
        let at = Math.floor(next() * 5);
        for (let k = 0; k < 4; k += 1) {
          const count = 1 + Math.floor(next() * 8);
          runs.push([row, at, count, k * 10]);
          at += count + Math.floor(next() * 3);
        }
      }
      const told = Array.from({ length: 80 }, () => "");
      for (const { first, count, rows } of segmentsOf(runs)) {
        for (let cell = first; cell < first + count; cell += 1) {
          expect(told[cell]).toBe("");
          told[cell] = rows.join(",");
        }
      }
      const held = told.map((_, cell) =>
        [0, 1, 2, 3]
          .filter((row) =>
            runs.some(([each, first, count]) => each === row && first <= cell && cell < first + count),
          )
          .join(","),
      );
      expect(told).toEqual(held);
    }
  });
});

describe("gridFor", () => {
  test("shows each cell where there is room, in blocks that are as large as fit", () => {
    const grid = gridFor(4096, 900, 240);
    expect(grid.perBlock).toBe(1);
    expect(grid.columns * grid.rows).toBeGreaterThanOrEqual(4096);
    expect(grid.rows * grid.pitch).toBeLessThanOrEqual(240);
  });

  test.each([1, 7, 4096, 131_072, 1_048_576])("shows all of %i cells within width and height", (capacity) => {
    for (const width of [320, 900, 3000]) {
      const grid = gridFor(capacity, width, 240);
      expect(grid.blocks * grid.perBlock).toBeGreaterThanOrEqual(capacity);
      expect(grid.columns * grid.pitch).toBeLessThanOrEqual(Math.max(width, grid.pitch));
      expect(grid.rows * grid.pitch).toBeLessThanOrEqual(240);
    }
  });
});

describe("blocksOf", () => {
  test("marks who holds most of a block, how full it is and how much of it is shared", () => {
    const segments = segmentsOf([
      [0, 0, 6, 0],
      [1, 4, 4, 0],
    ]);
    const blocks = blocksOf(segments, 12, { perBlock: 4, pitch: 5, columns: 3, rows: 1, blocks: 3 });
    expect([...blocks.owner]).toEqual([0, 0, -1]);
    expect([...blocks.filled]).toEqual([1, 1, 0]);
    expect([...blocks.shared]).toEqual([0, 0.5, 0]);
  });

  test("counts the last block's cells only as far as there are any", () => {
    const blocks = blocksOf([{ first: 8, count: 2, rows: [3] }], 10, {
      perBlock: 8,
      pitch: 5,
      columns: 2,
      rows: 1,
      blocks: 2,
    });
    expect([...blocks.filled]).toEqual([0, 1]);
  });

  test("maps a million cells by their runs", () => {
    const capacity = 1 << 20;
    const segments = [{ first: 0, count: capacity, rows: [0] }];
    const grid = gridFor(capacity, 900, 240);
    const { owner } = blocksOf(segments, capacity, grid);
    expect(owner.length).toBeLessThan(20_000);
    expect(owner.every((row) => row === 0)).toBe(true);
  });
});

test("holdings tell the positions of each sequence in a block", () => {
  const runs: Run[] = [
    [0, 0, 10, 0],
    [1, 8, 4, 100],
    [0, 20, 5, 10],
  ];
  expect(holdingsIn(runs, 8, 4)).toEqual([
    { row: 0, cells: 2, first: 8, last: 9 },
    { row: 1, cells: 4, first: 100, last: 103 },
  ]);
  expect(holdingsIn(runs, 12, 4)).toEqual([]);
});

test("keys move by a block or a row and stay inside", () => {
  const grid = { perBlock: 1, pitch: 5, columns: 10, rows: 3, blocks: 25 };
  expect(moved(0, "ArrowLeft", grid)).toBe(0);
  expect(moved(3, "ArrowDown", grid)).toBe(13);
  expect(moved(22, "ArrowDown", grid)).toBe(24);
  expect(moved(3, "End", grid)).toBe(24);
  expect(moved(3, "x", grid)).toBe(null);
});

test("sequences have the names of the engine's own pictures", () => {
  expect([0, 25, 26, 701, 702].map(rowName)).toEqual(["A", "Z", "AA", "ZZ", "AAA"]);
});

describe("blockText", () => {
  const cache = {
    kind: "causal",
    layers: [0],
    capacity: 12,
    provided_bytes: 0,
    used: 8,
    shared: 2,
    runs: [
      [0, 0, 6, 0],
      [1, 4, 4, 4],
    ] as Run[],
  };
  const sequence = (row: number, state: LiveSequence["state"], client = ""): LiveSequence => ({
    row,
    state,
    tokens: 6,
    request: 1,
    client,
    embeds: false,
    prompt: 0,
    cached: 0,
    generated: 0,
    age_s: 0,
  });
  const sequences = [sequence(0, "running", "alice"), sequence(1, "idle")];
  const grid = { perBlock: 4, pitch: 5, columns: 3, rows: 1, blocks: 3 };

  test("tells sequences, their positions and whose they are", () => {
    expect(blockText(cache, sequences, grid, 0)).toBe("Cells 0–3: A positions 0–3 (running, alice)");
    expect(blockText(cache, sequences, { ...grid, perBlock: 1, blocks: 12 }, 7)).toBe(
      "Cell 7: B position 7 (kept for later prompts)",
    );
  });

  test("tells cells that several sequences hold, and free ones", () => {
    expect(blockText(cache, sequences, grid, 1)).toBe(
      "Cells 4–7: shared or side by side: A positions 4–5 (running, alice); B positions 4–7 (kept for later prompts)",
    );
    expect(blockText(cache, sequences, grid, 2)).toBe("Cells 8–11: free");
  });
});

test("layers are told in ranges", () => {
  expect(layersText([])).toBe("no layers");
  expect(layersText([3])).toBe("layer 3");
  expect(layersText([0, 1, 2, 3, 5, 7, 8])).toBe("layers 0–3, 5, 7, 8");
  expect(layersText([0, 2, 4, 6, 8, 10, 12, 14])).toBe("layers 0, 2, 4, 6, 8, …");
});
