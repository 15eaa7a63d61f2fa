// Finds the tokens of an answer in its text, so that each can be shown where it stands and replaced by another.
import type { TokenLogprob, TopLogprob } from "../api/types";

export interface Place {
  token: TokenLogprob;
  /** The text that the token completes; empty within a character of several tokens. */
  text: string;
  part: "thinking" | "text" | "other";
  /** What the thought and the answer are before the token. */
  thinking: string;
  before: string;
  /** Whether another token can be put here: not within a character, nor in the marks around a thought. */
  canBranch: boolean;
}

/** Return the tokens with the part of the answer that they belong to. `thinking` and `text` are the whole answer. */
export function placesOf(
  tokens: readonly TokenLogprob[],
  answer: { thinking: string; text: string },
  prefix: { thinking: string; text: string } = { thinking: "", text: "" },
): Place[] {
  const decoder = new TextDecoder();
  const texts = tokens.map(({ token, bytes }) =>
    bytes === null || bytes === undefined ? token : decoder.decode(new Uint8Array(bytes), { stream: true }),
  );
  const all = texts.join("");
  const thought = answer.thinking.slice(prefix.thinking.length);
  const said = answer.text.slice(prefix.text.length);
  const thoughtAt = thought === "" ? -1 : all.indexOf(thought);
  const afterThought = thoughtAt < 0 ? 0 : thoughtAt + thought.length;
  const saidAt = said === "" ? -1 : all.indexOf(said, afterThought);
  const places: Place[] = [];
  let at = 0;
  let whole = true; // whether the characters so far are complete
  tokens.forEach((token, index) => {
    const text = texts[index] ?? "";
    const inThought = thoughtAt >= 0 && at >= thoughtAt && at < thoughtAt + thought.length;
    const inText = saidAt >= 0 && at >= saidAt && at < saidAt + said.length;
    places.push({
      token,
      text,
      part: inThought ? "thinking" : inText ? "text" : "other",
      thinking: inThought ? prefix.thinking + thought.slice(0, at - thoughtAt) : answer.thinking,
      before: inText ? prefix.text + said.slice(0, at - saidAt) : prefix.text,
      canBranch: whole && (inThought || inText),
    });
    at += text.length;
    whole = text !== "" || (token.bytes?.length ?? 0) === 0;
  });
  return places;
}

/** Return the text of an alternative, or null if it is not a text of its own. */
export function textOfAlternative({ token, bytes }: TopLogprob): string | null {
  if (bytes === null || bytes === undefined) return token === "" ? null : token;
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(bytes));
    return text === "" ? null : text;
  } catch {
    return null;
  }
}

export const probability = (logprob: number): number => Math.min(1, Math.exp(logprob));

/** Return which of five steps a probability is: 0 is nearly certain, 4 a surprise. */
export function step(logprob: number): number {
  const share = probability(logprob);
  return share >= 0.9 ? 0 : share >= 0.6 ? 1 : share >= 0.3 ? 2 : share >= 0.1 ? 3 : 4;
}
