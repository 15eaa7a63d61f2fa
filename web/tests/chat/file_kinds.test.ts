import { expect, test } from "vitest";
import { kindOf, LARGEST, recordingType, refusal, textIn } from "../../src/chat/file_kinds";

test.each([
  ["a.png", "image/png", "image"],
  ["a.HEIC", "", "image"],
  ["a.pdf", "", "pdf"],
  ["a.py", "text/x-python", "text"],
  ["Makefile", "", "text"],
  ["a.MP3", "", "audio"],
  ["a.ogg", "video/ogg", "audio"],
  ["said", "audio/x-wav", "audio"],
])("%s of the type %j is %s", (name, type, kind) => {
  expect(kindOf(name, type)).toBe(kind);
});

test("files that no model reads are refused with what to do, large ones with the limit", () => {
  expect(refusal("a.docx", "", 10)).toContain("Save it as one of these");
  expect(refusal("a.mp3", "audio/mpeg", 10)).toBeNull();
  expect(refusal("a.ogg", "video/ogg", 10)).toBeNull();
  expect(refusal("a.m4a", "audio/mp4", 10)).toContain("WAV, FLAC, OGG or MP3");
  expect(refusal("a.aiff", "", 10)).toContain("WAV, FLAC, OGG or MP3");
  expect(refusal("a.mp4", "video/mp4", 10)).toContain("neither a picture");
  expect(refusal("a.wav", "", LARGEST.audio + 1)).toContain("at most 40.0 MB");
  expect(refusal("a.txt", "", 0)).toBe("a.txt is empty.");
  expect(refusal("a.txt", "", LARGEST.text + 1)).toContain("at most 10.0 MB");
  expect(refusal("a.rs", "", 5_000_000)).toBeNull();
});

test("recordings are kept with a type of sound", () => {
  expect(recordingType("a", "audio/x-wav")).toBe("audio/x-wav");
  expect(["a.mp3", "a.WAV", "a.flac", "a.ogg"].map((name) => recordingType(name, "video/ogg"))).toEqual([
    "audio/mpeg",
    "audio/wav",
    "audio/flac",
    "audio/ogg",
  ]);
});

test("text is read in UTF-8, UTF-16 and old encodings, and bytes are no text", () => {
  expect(textIn(new TextEncoder().encode("größer"))).toBe("größer");
  expect(textIn(new Uint8Array([0xff, 0xfe, 0x41, 0x00]))).toBe("A");
  expect(textIn(new Uint8Array([0x67, 0x72, 0xf6]))).toBe("grö");
  expect(textIn(new Uint8Array([1, 2, 3, 0, 5]))).toBeNull();
});
