// @vitest-environment jsdom
import { beforeEach, describe, expect, test } from "vitest";
import { readStored, stored, writeStored } from "../../src/state/stored";

const isString = (value: unknown) => typeof value === "string";

describe("stored", () => {
  beforeEach(() => localStorage.clear());

  test("keeps a value for the next visit", () => {
    stored("name", "", isString).value = "demo";
    expect(localStorage.getItem("puna.name")).toBe('"demo"');
    expect(stored("name", "", isString).value).toBe("demo");
  });

  test.each(["12", "not JSON", "null"])("begins anew where %s is kept", (text) => {
    localStorage.setItem("puna.name", text);
    expect(stored("name", "new", isString).value).toBe("new");
  });

  test("writes nothing until something changes", () => {
    stored("name", "initial", isString);
    expect(localStorage.length).toBe(0);
  });

  test("follows other tabs", () => {
    const name = stored("name", "", isString);
    dispatchEvent(new StorageEvent("storage", { key: "puna.name", newValue: '"other"' }));
    dispatchEvent(new StorageEvent("storage", { key: "puna.else", newValue: '"nothing"' }));
    expect(name.value).toBe("other");
  });

  test("lives as long as the page where storage is forbidden", () => {
    const forbidden = () => {
      throw new DOMException("no", "SecurityError");
    };
    expect(readStored(forbidden, "x")).toBeNull();
    expect(() => writeStored(forbidden, "x", "y")).not.toThrow();
  });
});
