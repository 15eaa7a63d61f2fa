import { describe, expect, test } from "vitest";
import { placesOf, step, textOfAlternative } from "../../src/chat/tokens";

const token = (text: string, bytes: number[] | null = [...new TextEncoder().encode(text)]) => ({
  token: text,
  logprob: -0.5,
  bytes,
  top: [],
});
const parts = (places: ReturnType<typeof placesOf>) => places.map(({ text, part }) => [text, part]);

describe("the tokens of an answer", () => {
  test("are found in it, with the text before each", () => {
    const places = placesOf([token("Hel"), token("lo"), token(" you"), token("", [])], {
      thinking: "",
      text: "Hello you",
    });
    expect(parts(places)).toEqual([
      ["Hel", "text"],
      ["lo", "text"],
      [" you", "text"],
      ["", "other"],
    ]);
    expect(places.map((place) => place.before)).toEqual(["", "Hel", "Hello", ""]);
    expect(places.map((place) => place.canBranch)).toEqual([true, true, true, false]);
  });

  test("of a thought and of the marks around it are told apart", () => {
    const tokens = [
      token("<think>"),
      token("Hm"),
      token("."),
      token("</think>"),
      token("\n\n"),
      token("Yes"),
    ];
    const places = placesOf(tokens, { thinking: "Hm.", text: "Yes" });
    expect(places.map((place) => place.part)).toEqual([
      "other",
      "thinking",
      "thinking",
      "other",
      "other",
      "text",
    ]);
    expect(places[2]).toMatchObject({ thinking: "Hm", before: "" });
    expect(places[5]).toMatchObject({ thinking: "Hm.", before: "" });
  });

  test("go on from a beginning that was given", () => {
    const places = placesOf(
      [token(" was"), token(" red")],
      { thinking: "", text: "It was red" },
      { thinking: "", text: "It" },
    );
    expect(places.map((place) => place.before)).toEqual(["It", "It was"]);
  });

  test("that are parts of a character show with its last one, and cannot be replaced in between", () => {
    const [first, second] = [
      [0xf0, 0x9f],
      [0x99, 0x82],
    ];
    const places = placesOf([token("?", first), token("?", second), token("!")], {
      thinking: "",
      text: "🙂!",
    });
    expect(places.map((place) => place.text)).toEqual(["", "🙂", "!"]);
    expect(places.map((place) => place.canBranch)).toEqual([true, false, true]);
    expect(places[2]?.before).toBe("🙂");
  });
});

test("an alternative that is no text of its own cannot be chosen", () => {
  expect(textOfAlternative(token(" a"))).toBe(" a");
  expect(textOfAlternative(token("?", [0xf0, 0x9f]))).toBeNull();
  expect(textOfAlternative(token("", []))).toBeNull();
});

test("probabilities have five steps", () => {
  expect([0.95, 0.7, 0.4, 0.2, 0.01].map((share) => step(Math.log(share)))).toEqual([0, 1, 2, 3, 4]);
});
