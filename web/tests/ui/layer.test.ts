import { describe, expect, test } from "vitest";
import { place } from "../../src/ui/layer";

const room = { width: 1000, height: 800 };
const size = { width: 200, height: 300 };
const box = (left: number, top: number) => ({ left, top, right: left + 40, bottom: top + 30 });

describe("place", () => {
  test("goes below, at the start of the anchor", () => {
    expect(place(box(100, 100), size, room)).toMatchObject({ left: 100, top: 136 });
  });

  test("ends where the anchor ends", () => {
    expect(place(box(500, 100), size, room, { align: "end" }).left).toBe(340);
  });

  test("turns around where text runs from right to left", () => {
    expect(place(box(500, 100), size, room, {}, true).left).toBe(340);
  });

  test("goes above where there is no room below", () => {
    expect(place(box(100, 700), size, room)).toMatchObject({ top: 394 });
  });

  test("goes below where there is no room above", () => {
    expect(place(box(100, 50), size, room, { side: "above" }).top).toBe(86);
  });

  test("stays inside the window", () => {
    expect(place(box(950, 100), size, room).left).toBe(792);
    expect(place(box(-20, 100), size, room).left).toBe(8);
  });

  test("is made shorter where neither side has room", () => {
    const spot = place(box(100, 500), { width: 200, height: 900 }, room);
    expect(spot.maxHeight).toBe(486);
    expect(spot.top).toBe(8);
  });
});
