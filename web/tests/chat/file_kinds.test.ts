import { expect, test } from "vitest";
import { kindOf, LARGEST, refusal, textIn } from "../../src/chat/file_kinds";

test.each([
  ["a.png", "image/png", "image"],
  ["a.HEIC", "", "image"],
  ["a.pdf", "", "pdf"],
  ["a.py", "text/x-python", "text"],
  ["Makefile", "", "text"],
])("%s of the type %j is %s", (name, type, kind) => {
  expect(kindOf(name, type)).toBe(kind);
});

test("files that no model reads are refused with what to do, large ones with the limit", () => {
  expect(refusal("a.docx", "", 10)).toContain("Save it as one of these");
  expect(refusal("a.mp3", "audio/mpeg", 10)).not.toBeNull();
  expect(refusal("a.txt", "", 0)).toBe("a.txt is empty.");
  expect(refusal("a.txt", "", LARGEST.text + 1)).toContain("at most 10.0 MB");
  expect(refusal("a.rs", "", 5_000_000)).toBeNull();
});

test("text is read in UTF-8, UTF-16 and old encodings, and bytes are no text", () => {
  expect(textIn(new TextEncoder().encode("größer"))).toBe("größer");
  expect(textIn(new Uint8Array([0xff, 0xfe, 0x41, 0x00]))).toBe("A");
  expect(textIn(new Uint8Array([0x67, 0x72, 0xf6]))).toBe("grö");
  expect(textIn(new Uint8Array([1, 2, 3, 0, 5]))).toBeNull();
});
