import { describe, expect, test } from "vitest";
import { hashOf, parseRoute } from "../../src/state/route";

describe("parseRoute", () => {
  test.each([
    ["", { view: "chat", item: null, query: {} }],
    ["#/", { view: "chat", item: null, query: {} }],
    ["#/chat", { view: "chat", item: null, query: {} }],
    ["#/chat/0123456789abcdef", { view: "chat", item: "0123456789abcdef", query: {} }],
    ["#/chat/ab?message=cd", { view: "chat", item: "ab", query: { message: "cd" } }],
    ["#/models/hf.co/org/model:Q4", { view: "models", item: "hf.co/org/model:Q4", query: {} }],
    ["#/settings/data", { view: "settings", item: "data", query: {} }],
    ["#/nowhere/else", { view: "chat", item: null, query: {} }],
    ["#/__proto__", { view: "chat", item: null, query: {} }],
  ])("reads %j", (hash, route) => {
    expect(parseRoute(hash)).toEqual(route);
  });

  test("keeps what is no valid escape", () => {
    expect(parseRoute("#/models/100%").item).toBe("100%");
  });

  test.each(["demo", "hf.co/org/model:Q4_K_M", "a b", "ä?#&", "100%"])(
    "finds %j where hashOf put it",
    (item) => {
      expect(parseRoute(hashOf("models", item)).item).toBe(item);
    },
  );

  test("finds the query where hashOf put it", () => {
    expect(parseRoute(hashOf("chat", "ab", { q: "x & y" })).query).toEqual({ q: "x & y" });
  });
});
