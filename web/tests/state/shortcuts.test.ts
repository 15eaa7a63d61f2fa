import { describe, expect, test } from "vitest";
import { keyNames, pressed } from "../../src/state/shortcuts";

const event = (
  key: string,
  held: Partial<Record<"ctrlKey" | "metaKey" | "altKey" | "shiftKey", boolean>> = {},
) => ({
  key,
  ctrlKey: false,
  metaKey: false,
  altKey: false,
  shiftKey: false,
  ...held,
});

describe("pressed", () => {
  test("names the keys that are held", () => {
    expect(pressed(event("O", { ctrlKey: true, shiftKey: true }), false)).toBe("mod+shift+o");
    expect(pressed(event("k", { metaKey: true }), true)).toBe("mod+k");
    expect(pressed(event("Escape"), false)).toBe("escape");
    expect(pressed(event(" "), false)).toBe("space");
  });

  test("counts no shift that is part of a character", () => {
    expect(pressed(event("?", { shiftKey: true }), false)).toBe("?");
  });

  test("takes Ctrl for mod except on a Mac", () => {
    expect(pressed(event("k", { ctrlKey: true }), true)).toBe("k");
  });
});

test("keys have the names that stand on them", () => {
  expect(keyNames("mod+shift+o", false)).toEqual(["Ctrl", "Shift", "O"]);
  expect(keyNames("mod+k", true)).toEqual(["⌘", "K"]);
});
