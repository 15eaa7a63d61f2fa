import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { parseModelfile, quoted } from "../../src/models/modelfile";
import { DEPRECATED, PARAMETERS, QUANTISATIONS } from "../../src/models/parameters";
import { nameProblem, recipeOf, startingFrom } from "../../src/models/recipe";
import { pick, random } from "../random";

const root = join(import.meta.dirname, "../../..");
const read = (path: string) => readFileSync(join(root, path), "utf8");
const recipe = (text: string, added: string[] = []) => recipeOf(parseModelfile(text), added);

/** Return the blocks of a page of the documentation that are Modelfiles. */
function documented(path: string): string[] {
  return [...read(path).matchAll(/```[a-z]*\n([\s\S]*?)```/g)]
    .map(([, text]) => text!)
    .filter((text) => /^FROM /.test(text));
}

describe("parseModelfile", () => {
  test("reads commands in any case, with comments and blank lines between", () => {
    const { commands, problems } = parseModelfile(
      "# a comment\n\nfrom demo\n  PARAMETER temperature 0.5\nMESSAGE user Hi there\n",
    );
    expect(problems).toEqual([]);
    expect(commands).toEqual([
      { name: "from", key: "", value: "demo", line: 3 },
      { name: "parameter", key: "temperature", value: "0.5", line: 4 },
      { name: "message", key: "user", value: "Hi there", line: 5 },
    ]);
  });

  test("reads quoted values over lines, and quotes within", () => {
    const { commands } = parseModelfile('FROM a\nSYSTEM """You say "yes",\nor "no"."""\nTEMPLATE "one"\n');
    expect(commands.map(({ value, line }) => [line, value])).toEqual([
      [1, "a"],
      [2, 'You say "yes",\nor "no".'],
      [4, "one"],
    ]);
  });

  test.each(["\n", "\r\n", "\r"])("counts lines that end in %j", (end) => {
    const { problems } = parseModelfile(["FROM a", 'SYSTEM "x', 'y"', "PARAMETR top_k 3"].join(end));
    expect(problems).toEqual([{ line: 4, message: "PARAMETR is no command; PARAMETER is" }]);
  });

  test("names the line of each problem and reads on", () => {
    const { commands, problems } = parseModelfile(
      "FROM a\nMESSAGE robot hi\nSYSTEM\nWHATEVER 1\nPARAMETER top_k\nSYSTEM x",
    );
    expect(problems.map(({ line }) => line)).toEqual([2, 3, 4, 5]);
    expect(commands.map(({ name }) => name)).toEqual(["from", "system"]);
  });

  test("a quote that is never closed is reported where it opens", () => {
    expect(parseModelfile('FROM a\n\nSYSTEM """one\ntwo\n').problems).toEqual([
      { line: 3, message: "The quote that is opened here is never closed" },
    ]);
  });

  test("wants a FROM line", () => {
    expect(parseModelfile("SYSTEM x").problems).toHaveLength(1);
    expect(parseModelfile("").problems).toHaveLength(1);
  });

  test("ends, with lines in the text, for any text", () => {
    const next = random(5);
    const pieces = ["FROM ", "a", "\n", '"', '"""', "PARAMETER", " ", "#", "\r", "MESSAGE user ", "é", "\t"];
    for (let round = 0; round < 400; round += 1) {
      const text = Array.from({ length: Math.floor(next() * 20) }, () => pick(next, pieces)).join("");
      const lines = text.split(/\r\n|\r|\n/).length;
      for (const { line } of parseModelfile(text).problems) {
        expect(line).toBeGreaterThanOrEqual(1);
        expect(line).toBeLessThanOrEqual(lines);
      }
    }
  });

  test("what quoted writes is read back", () => {
    for (const value of ["plain", " spaced ", "two\nlines", 'a "quote"', '"begins', "", "a\n\nb"]) {
      expect(parseModelfile(`FROM a\nSYSTEM ${quoted(value)}\n`).commands[1]?.value).toBe(value);
    }
  });
});

describe("the documentation", () => {
  test.each(["docs/models-of-your-own.md", "docs/adapters.md"])(
    "has Modelfiles that are understood: %s",
    (path) => {
      const found = documented(path);
      expect(found.length).toBeGreaterThan(0);
      for (const text of found) expect(parseModelfile(text).problems).toEqual([]);
    },
  );

  test("lists the same types of quantising", () => {
    const [, listed] = /^Types: (.+?)\. /m.exec(read("docs/models-of-your-own.md"))!;
    expect(QUANTISATIONS.map(({ type }) => type).sort()).toEqual(listed!.split(/, | and /).sort());
  });

  test("the engine's options are the parameters, with their kinds", () => {
    const source = read("src/puna/options.py").split("class Options(")[1]!.split("@classmethod")[0]!;
    const kinds = [...source.matchAll(/^ {4}(\w+): (.+?) = /gm)].map(
      ([, name, type]) => [name!, type!] as const,
    );
    expect(kinds.length).toBeGreaterThan(30);
    for (const [name, type] of kinds) {
      if (DEPRECATED.includes(name)) continue;
      const expected = type.startsWith("bool")
        ? "yes or no"
        : type.startsWith("int")
          ? "whole"
          : type.startsWith("float")
            ? "number"
            : "text";
      expect([name, name === "stop" ? "text" : PARAMETERS[name]]).toEqual([name, expected]);
    }
    expect(Object.keys(PARAMETERS).sort()).toEqual(
      kinds
        .map(([name]) => name)
        .filter((name) => !DEPRECATED.includes(name))
        .sort(),
    );
  });
});

describe("recipeOf", () => {
  test("makes a body of a model's name and what is to be changed", () => {
    const { body, problems } = recipe(
      'FROM demo\nSYSTEM "Be brief."\nPARAMETER temperature 0.3\nPARAMETER stop A\nPARAMETER stop B\nPARAMETER use_mmap false\nMESSAGE user Hi\nMESSAGE assistant Hello\nLICENSE MIT\nLICENSE "Apache"\nREQUIRES v0.14.0\nTEMPLATE {{ .Prompt }}',
    );
    expect(problems).toEqual([]);
    expect(body).toEqual({
      from: "demo",
      system: "Be brief.",
      parameters: { temperature: 0.3, stop: ["A", "B"], use_mmap: false },
      messages: [
        { role: "user", content: "Hi" },
        { role: "assistant", content: "Hello" },
      ],
      license: ["MIT", "Apache"],
      requires: "0.14.0",
      template: "{{ .Prompt }}",
    });
  });

  test("takes files that were added by their names, also all parts of a split one", () => {
    expect(recipe("FROM ./model.gguf\nFROM mmproj.gguf", ["model.gguf", "mmproj.gguf"])).toMatchObject({
      files: { "model.gguf": "model.gguf", "mmproj.gguf": "mmproj.gguf" },
      problems: [],
    });
    const parts = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
    expect(Object.keys(recipe(`FROM ./${parts[0]}`, parts).files)).toEqual(parts);
  });

  test("takes a published model's files for a folder", () => {
    const added = ["model.safetensors", "config.json", "tokenizer.json"];
    expect(Object.keys(recipe("FROM ./smol", added).files)).toEqual(added);
  });

  test("asks for files that are missing, with the line", () => {
    const { problems } = recipe("FROM ./model.gguf\nADAPTER ./style.gguf 0.5");
    expect(problems.map(({ line }) => line)).toEqual([1, 2]);
    expect(problems[0]!.message).toContain("add this file");
  });

  test("warns of files that no line names", () => {
    expect(recipe("FROM demo", ["other.gguf"]).problems).toMatchObject([{ warning: true }]);
  });

  test("adapters have scales, by the names of their files", () => {
    const { adapters, body } = recipe("FROM demo\nADAPTER ./style.gguf 0.5\nADAPTER tone.gguf", [
      "style.gguf",
      "tone.gguf",
    ]);
    expect(adapters).toEqual({ "style.gguf": "style.gguf", "tone.gguf": "tone.gguf" });
    expect(body.adapter_scales).toEqual({ "style.gguf": 0.5 });
  });

  test("an adapter as PEFT saves it becomes a folder", () => {
    const added = ["adapter_config.json", "adapter_model.safetensors"];
    const { adapters, body, problems } = recipe("FROM demo\nADAPTER ./tone 2", added);
    expect(problems).toEqual([]);
    expect(adapters).toEqual({
      "tone/adapter_config.json": "adapter_config.json",
      "tone/adapter_model.safetensors": "adapter_model.safetensors",
    });
    expect(body.adapter_scales).toEqual({ tone: 2 });
  });

  test.each([
    ["PARAMETER temprature 1", "There is no parameter temprature; temperature is one"],
    ["PARAMETER top_k 1.5", "top_k takes a whole number, not 1.5"],
    ["PARAMETER use_mmap perhaps", "use_mmap takes true or false, not perhaps"],
    ["REQUIRES soon", "REQUIRES takes a version such as 0.14.0"],
    ["FROM other", "There are two models, demo and other: name one"],
  ])("says what is wrong with %s", (line, message) => {
    expect(recipe(`FROM demo\n${line}`).problems).toEqual([{ line: 2, message }]);
  });

  test("parameters of older versions are a warning", () => {
    expect(recipe("FROM demo\nPARAMETER f16_kv true").problems).toMatchObject([{ line: 2, warning: true }]);
  });
});

test("a model made of another starts with its Modelfile, without its files", () => {
  const shown =
    '# Modelfile generated by "puna show"\n# FROM x\n\nFROM /models/a\nADAPTER /models/b 0.5\nFROM /models/c\nSYSTEM hi\n';
  expect(startingFrom(shown, "x:latest")).toBe("FROM x:latest\nSYSTEM hi\n");
  expect(startingFrom("SYSTEM hi", "x")).toBe("FROM x\nSYSTEM hi\n");
});

test("names of models are checked", () => {
  for (const name of ["demo", "a/b:c", "hf.co/x/y:Q4_K_M"]) expect(nameProblem(name)).toBe(null);
  for (const name of ["", " ", "a b", "-x", "a:", "a//b", "<b>"]) expect(nameProblem(name)).not.toBe(null);
});
