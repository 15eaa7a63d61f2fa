import { describe, expect, test } from "vitest";
import {
  parse,
  problemOfFormat,
  problemOfGrammar,
  problemOfSchema,
  problemOfTools,
} from "../../src/chat/checks";

describe("a schema", () => {
  test.each([
    [{ type: "object", properties: { a: { type: "string", minLength: 1 } }, required: ["a"] }],
    [{ anyOf: [{ type: "null" }, { $ref: "#/$defs/x" }], $defs: { x: { enum: [1, 2] } } }],
    [{ type: ["string", "null"], pattern: "^[a-z]+$", description: "words" }],
    [true],
  ])("%j is valid", (schema) => {
    expect(problemOfSchema(schema)).toBeNull();
  });

  test.each([
    [{ type: "text" }, /^#\/type must be one of/],
    [{ properties: { a: { minLength: -1 } } }, /^#\/properties\/a\/minLength/],
    [{ properties: { a: { not: {} } } }, /^#\/properties\/a\/not: “not” cannot be kept to/],
    [{ $ref: "#/$defs/x" }, /leads to #\/\$defs\/x/],
    [{ pattern: "(?=a)b" }, /look-around/],
    [{ pattern: "(" }, /#\/pattern/],
    [{ anyOf: [] }, /#\/anyOf must be a list/],
    [{ required: "a" }, /#\/required/],
    [[], /must be a schema/],
  ])("%j is not", (schema, problem) => {
    expect(problemOfSchema(schema)).toMatch(problem);
  });
});

describe("a grammar", () => {
  test.each([
    ['root ::= number " and " number\nnumber ::= [1-9] [0-9]?'],
    ['# words\nroot ::= "a" (x | "b")* y{2,3}\nx ::= "\\""\ny ::= [^"\\]]'],
    ['start: NUMBER "+" NUMBER\nNUMBER: /[1-9][0-9]{0,2}/'],
    ["%import common.WS\nstart: WS? word+\nword: /\\w+/i // comment"],
  ])("%j is valid", (text) => {
    expect(problemOfGrammar(text)).toBeNull();
  });

  test.each([
    ['rot ::= "a"', "no rule “root”"],
    ["root ::= word", "no rule “word”"],
    ['root ::= "a', "line 1"],
    ['root ::= ("a"', "bracket"],
    ['root ::= "a" )', "without its beginning"],
    ['root ::= "a"\nroot ::= "b"', "twice"],
    ['other: "a"', "no rule “start”"],
  ])("%j is not", (text, problem) => {
    expect(problemOfGrammar(text)).toContain(problem);
  });
});

test("an empty format is said to be empty, free text is fine", () => {
  expect(problemOfFormat({ kind: "schema", text: " " })).toBe("it is empty.");
  expect(problemOfFormat({ kind: "none", text: "" })).toBeNull();
  expect(problemOfFormat({ kind: "regex", text: "[a" })).not.toBeNull();
});

test("a mistake in JSON is named with its line", () => {
  const parsed = parse('{\n  "a": 1,\n  oops\n}');
  expect("problem" in parsed && parsed.problem).toMatch(/line 3/);
});

describe("tools", () => {
  const tool = (name: string, parameters?: unknown) => ({ type: "function", function: { name, parameters } });
  test("are a list of functions with names of their own", () => {
    expect(problemOfTools(JSON.stringify([tool("f"), tool("g", { type: "object" })]))).toBeNull();
    expect(problemOfTools("")).toBeNull();
    expect(problemOfTools("{}")).toContain("list");
    expect(problemOfTools('[{"name": "f"}]')).toContain("tool 1");
    expect(problemOfTools(JSON.stringify([tool("")]))).toContain("no name");
    expect(problemOfTools(JSON.stringify([tool("f"), tool("f")]))).toContain("twice");
    expect(problemOfTools(JSON.stringify([tool("f", { type: "text" })]))).toContain(
      "“f”, parameters: #/type",
    );
  });
});
