import { expect, test } from "vitest";
import type { TransferProgress } from "../../src/api/types";
import { amountOf, begun, ended, paceOf, withProgress } from "../../src/models/transfer";

const following = (...said: TransferProgress[]) =>
  said.reduce((pull, each, at) => withProgress(pull, each, at), begun("demo"));
const blob = (digest: string, completed: number, total = 100): TransferProgress => ({
  status: `pulling ${digest}`,
  digest: `sha256:${digest}`,
  completed,
  total,
});

test("each part has a bar of its own", () => {
  const pull = following({ status: "pulling manifest" }, blob("aa", 10), blob("bb", 50), blob("aa", 60));
  expect(pull.parts).toEqual([
    { key: "sha256:aa", label: "pulling aa", done: 60, total: 100 },
    { key: "sha256:bb", label: "pulling bb", done: 50, total: 100 },
  ]);
  expect(amountOf(pull)).toEqual({ done: 110, total: 200 });
});

test("success fills all bars", () => {
  const pull = following(blob("aa", 10), { status: "success" });
  expect(pull.state).toBe("done");
  expect(amountOf(pull)).toEqual({ done: 100, total: 100 });
});

test("steps without a digest are told apart by their words", () => {
  const pull = following(
    { status: "converting", digest: "0000000000000000000", completed: 3, total: 4 },
    { status: "quantizing", digest: "0000000000000000000", completed: 1, total: 4 },
  );
  expect(pull.parts.map(({ label }) => label)).toEqual(["converting", "quantizing"]);
});

test("the pace is that of the last seconds", () => {
  expect(paceOf(following(blob("aa", 10)))).toBe(null);
  expect(paceOf(following(blob("aa", 10), blob("aa", 20), blob("aa", 30)))).toEqual({ speed: 10, left_s: 7 });
});

test("a pull that was stopped keeps what has come", () => {
  const pull = ended(following(blob("aa", 10)), "failed", "no route");
  expect(pull).toMatchObject({ state: "failed", error: "no route" });
  expect(amountOf(pull).done).toBe(10);
});

test("warnings are kept", () => {
  expect(following({ status: "success", warnings: ["x"] }).warnings).toEqual(["x"]);
});
