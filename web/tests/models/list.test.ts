import { expect, test } from "vitest";
import type { ModelTag } from "../../src/api/types";
import { isSame, matching, parameterCount, sorted, verdictOf } from "../../src/models/list";

const model = (name: string, size: number, more: Partial<ModelTag["details"]> = {}): ModelTag => ({
  name,
  model: name,
  modified_at: new Date(size * 1e9).toISOString(),
  size,
  digest: name,
  details: { quantization_level: "Q4_K_M", family: "llama", ...more },
  capabilities: ["completion"],
});
const models = [
  model("llama:8b", 500, { parameter_size: "8.0B" }),
  model("llama:70b", 40, { parameter_size: "700M", quantization_level: "Q8_0" }),
  model("bert", 3, { parameter_size: "33M", family: "bert" }),
];
const named = (found: ModelTag[]) => found.map(({ name }) => name);

test("every word of a search must be found somewhere", () => {
  expect(named(matching(models, "llama q8"))).toEqual(["llama:70b"]);
  expect(named(matching(models, "  "))).toHaveLength(3);
  expect(named(matching(models, "completion BERT"))).toEqual(["bert"]);
});

test("sorts by what a column shows, numbers in names as numbers", () => {
  expect(named(sorted(models, { by: "name", descending: false }))).toEqual(["bert", "llama:8b", "llama:70b"]);
  expect(named(sorted(models, { by: "size", descending: true }))).toEqual(["llama:8b", "llama:70b", "bert"]);
  expect(named(sorted(models, { by: "parameters", descending: false }))).toEqual([
    "bert",
    "llama:70b",
    "llama:8b",
  ]);
});

test("a name comes before longer ones that begin with it", () => {
  const found = sorted([model("demo-vision:latest", 1), model("demo:latest", 2)], {
    by: "name",
    descending: false,
  });
  expect(named(found)).toEqual(["demo:latest", "demo-vision:latest"]);
});

test("reads counts of parameters", () => {
  expect([undefined, "", "7.6B", "890K", "1.5T", "12"].map(parameterCount)).toEqual([
    0, 0, 7.6e9, 890e3, 1.5e12, 12,
  ]);
});

test("names with and without the usual tag mean the same model", () => {
  expect(isSame("demo", "Demo:latest")).toBe(true);
  expect(isSame("demo", "demo:1b")).toBe(false);
});

test("a verdict says what is needed and what is left", () => {
  const plan = { context: 1024, parallel: 4, rows: [], total: 50e6, available: 100e6, fits: true };
  expect(verdictOf(plan)).toMatchObject({ kind: "fits" });
  expect(verdictOf(plan).about).toContain("50.0 MB for 4 sequences of 1,024 tokens");
  expect(verdictOf({ ...plan, total: 95e6 })).toMatchObject({ kind: "tight" });
  expect(verdictOf({ ...plan, total: 120e6, fits: false })).toMatchObject({ kind: "too large" });
});
