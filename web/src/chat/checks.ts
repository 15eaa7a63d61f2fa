// Checks what people type as a format or as tools, before it is sent.
import type { Settings } from "./chat_settings";
import { mistakeIn } from "./json_mistake";

export interface CheckedSettings {
  problems: string[];
  /** The fields of the request that make the format. */
  format: Record<string, unknown>;
  tools: unknown[] | null;
}

export function checkSettings(settings: Settings): CheckedSettings {
  const problems: string[] = [];
  const format: Record<string, unknown> = {};
  const { kind, text } = settings.format;
  const wrong = problemOfFormat(settings.format);
  if (wrong !== null) problems.push(`The format is not valid: ${wrong}`);
  else if (kind === "json") format.format = "json";
  else if (kind === "schema") format.format = JSON.parse(text) as unknown;
  else if (kind === "grammar") format.grammar = text;
  else if (kind === "regex") format.guided_regex = text;
  else if (kind === "choice") format.guided_choice = choicesIn(text);
  const tools = settings.usesTools ? problemOfTools(settings.tools) : null;
  if (tools !== null) problems.push(`The tools are not valid: ${tools}`);
  const hasTools = settings.usesTools && tools === null && settings.tools.trim() !== "";
  return { problems, format, tools: hasTools ? (JSON.parse(settings.tools) as unknown[]) : null };
}

export const choicesIn = (text: string): string[] =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");

/** Return what is wrong with a format, or null. */
export function problemOfFormat({ kind, text }: Settings["format"]): string | null {
  if (kind === "none" || kind === "json") return null;
  if (text.trim() === "") return "it is empty.";
  if (kind === "choice") return null;
  if (kind === "regex") return problemOfRegex(text);
  if (kind === "grammar") return problemOfGrammar(text);
  const parsed = parse(text);
  if ("problem" in parsed) return parsed.problem;
  return problemOfSchema(parsed.value);
}

/** Return what is wrong with a text that should be JSON, and where. */
export function parse(text: string): { value: unknown } | { problem: string } {
  try {
    return { value: JSON.parse(text) as unknown };
  } catch {
    return { problem: mistakeIn(text) };
  }
}

const TYPES = ["object", "array", "string", "number", "integer", "boolean", "null"];
const REFUSED = [
  "not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains", "dependentRequired",
  "dependentSchemas", "propertyNames", "unevaluatedProperties", "unevaluatedItems", "dependencies",
]; // biome-ignore format: a list of words
const LISTS = ["anyOf", "allOf", "oneOf", "prefixItems"];
const MAPS = ["properties", "patternProperties", "$defs", "definitions"];
const NUMBERS = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];
const COUNTS = ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** Return what is wrong with a JSON schema and where it stands, as a pointer, or null. */
export function problemOfSchema(schema: unknown, root: unknown = schema, at = "#"): string | null {
  if (typeof schema === "boolean") return null;
  if (!isObject(schema)) return `${at} must be a schema: an object, true or false.`;
  for (const [key, value] of Object.entries(schema)) {
    const here = `${at}/${key.replaceAll("~", "~0").replaceAll("/", "~1")}`;
    const problem = problemOfKeyword(key, value, root, here);
    if (problem !== null) return problem;
  }
  return null;
}

function problemOfKeyword(key: string, value: unknown, root: unknown, at: string): string | null {
  if (REFUSED.includes(key)) return `${at}: “${key}” cannot be kept to; leave it out.`;
  if (key === "type") {
    const types = Array.isArray(value) ? value : [value];
    const wrong = types.find((type) => !TYPES.includes(type as string));
    return wrong === undefined ? null : `${at} must be one of ${TYPES.join(", ")}.`;
  }
  if (LISTS.includes(key)) {
    if (!Array.isArray(value) || value.length === 0) return `${at} must be a list of schemas.`;
    return firstProblem(value.map((each, index) => problemOfSchema(each, root, `${at}/${index}`)));
  }
  if (MAPS.includes(key)) {
    if (!isObject(value)) return `${at} must be an object of schemas.`;
    return firstProblem(
      Object.entries(value).map(
        ([name, each]) =>
          (key === "patternProperties" ? problemOfPattern(name, at) : null) ??
          problemOfSchema(each, root, `${at}/${name.replaceAll("~", "~0").replaceAll("/", "~1")}`),
      ),
    );
  }
  if (key === "items" || key === "additionalProperties") return problemOfSchema(value, root, at);
  if (key === "required") {
    const isNames = Array.isArray(value) && value.every((name) => typeof name === "string");
    return isNames ? null : `${at} must be a list of names.`;
  }
  if (key === "enum")
    return Array.isArray(value) && value.length > 0 ? null : `${at} must be a list of values.`;
  if (NUMBERS.includes(key)) return typeof value === "number" ? null : `${at} must be a number.`;
  if (COUNTS.includes(key)) {
    return Number.isInteger(value) && (value as number) >= 0 ? null : `${at} must be a whole number from 0.`;
  }
  if (key === "pattern") {
    return typeof value === "string" ? problemOfPattern(value, at) : `${at} must be a regular expression.`;
  }
  if (key === "$ref") {
    if (typeof value !== "string") return `${at} must be a text.`;
    return value.startsWith("#/") && lookUp(root, value) === undefined
      ? `${at} leads to ${value}, which is not there.`
      : null;
  }
  return null;
}

const firstProblem = (problems: (string | null)[]) => problems.find((problem) => problem !== null) ?? null;

function problemOfPattern(pattern: string, at: string): string | null {
  const problem = problemOfRegex(pattern);
  return problem === null ? null : `${at}: ${problem}`;
}

function lookUp(root: unknown, pointer: string): unknown {
  let value = root;
  for (const part of pointer.slice(2).split("/")) {
    let name = part.replaceAll("~1", "/").replaceAll("~0", "~");
    try {
      name = decodeURIComponent(name);
    } catch {
      // A percent sign that stands for itself.
    }
    if (typeof value !== "object" || value === null) return undefined;
    value = (value as Record<string, unknown>)[name];
  }
  return value;
}

function problemOfRegex(text: string): string | null {
  if (/\(\?<?[=!]/.test(text)) return "look-around is not supported.";
  if (/(?<!\\)(?:\\\\)*\\[1-9]/.test(text)) return "references to groups are not supported.";
  try {
    new RegExp(text, "u");
  } catch {
    try {
      new RegExp(text.replace(/^\(\?[a-z]+\)/, ""));
    } catch (error) {
      const message = error instanceof Error ? error.message : "it is no regular expression";
      return `${message.replace(/^Invalid regular expression: /, "")}.`;
    }
  }
  return null;
}

/** Return what is wrong with a grammar, in GBNF if there is a "::=" in it, else in Lark. */
export function problemOfGrammar(text: string): string | null {
  const isGbnf = text.includes("::=");
  const clear = withoutLiterals(text, isGbnf);
  if ("problem" in clear) return clear.problem;
  const rule = isGbnf
    ? /^[ \t]*([A-Za-z][\w-]*)[ \t]*::=/gm
    : /^[ \t]*([?!]?[A-Za-z_][\w]*)(?:\[[^\]]*\])?(?:\.\d+)?[ \t]*:/gm;
  const names = [...clear.text.matchAll(rule)].map((match) => (match[1] ?? "").replace(/^[?!]/, ""));
  const first = isGbnf ? "root" : "start";
  if (!names.includes(first)) return `it has no rule “${first}”, where every text begins.`;
  const twice = names.find((name, index) => names.indexOf(name) !== index);
  if (twice !== undefined) return `the rule “${twice}” is there twice.`;
  const unknown = unknownRule(clear.text, names, isGbnf);
  return unknown === null ? null : `there is no rule “${unknown}”.`;
}

function unknownRule(text: string, names: string[], isGbnf: boolean): string | null {
  const bodies = text
    .split("\n")
    .filter((line) => isGbnf || !/^\s*%/.test(line))
    .map((line) =>
      line.replace(isGbnf ? /^[ \t]*[\w-]+[ \t]*::=/ : /^[ \t]*[?!]?\w+(?:\[[^\]]*\])?(?:\.\d+)?[ \t]*:/, ""),
    )
    .join("\n")
    .replace(/\{[\d,\s]*\}|~\s*\d+(?:\.\.\d+)?|->\s*\w+|<\|?[^>\n]*\|?>/g, " ");
  const imported = [...text.matchAll(/^\s*%import\s+(?:[\w.]*\.)?(\w+)(?:\s*->\s*(\w+))?/gm)].map(
    (match) => match[2] ?? match[1],
  );
  for (const [word] of bodies.matchAll(isGbnf ? /[A-Za-z][\w-]*/g : /[A-Za-z_]\w*/g)) {
    if (!names.includes(word) && !imported.includes(word)) return word;
  }
  return null;
}

/** Return the grammar with spaces instead of texts, character classes and comments, all of which must end. */
function withoutLiterals(text: string, isGbnf: boolean): { text: string } | { problem: string } {
  let result = "";
  const depth: string[] = [];
  const lineOf = (at: number) => text.slice(0, at).split("\n").length;
  for (let at = 0; at < text.length; at += 1) {
    const sign = text[at]!;
    const comment = isGbnf ? sign === "#" : sign === "#" || text.startsWith("//", at);
    if (comment) {
      while (at < text.length && text[at] !== "\n") at += 1;
      result += "\n";
      continue;
    }
    const end = sign === '"' ? '"' : isGbnf && sign === "[" ? "]" : !isGbnf && sign === "/" ? "/" : null;
    if (end !== null) {
      const begin = at;
      for (at += 1; at < text.length && text[at] !== end && text[at] !== "\n"; at += 1)
        if (text[at] === "\\") at += 1;
      if (text[at] !== end) return { problem: `line ${lineOf(begin)}: ${sign} without its ${end}.` };
      if (!isGbnf) while (/[a-z]/.test(text[at + 1] ?? "")) at += 1;
      result += " ";
      continue;
    }
    if (sign === "(") depth.push(")");
    else if (sign === ")" && depth.pop() !== sign)
      return { problem: `line ${lineOf(at)}: ${sign} without its beginning.` };
    result += sign;
  }
  return depth.length > 0 ? { problem: "a bracket is not closed." } : { text: result };
}

/** Return what is wrong with a list of tools, or null. */
export function problemOfTools(text: string): string | null {
  if (text.trim() === "") return null;
  const parsed = parse(text);
  if ("problem" in parsed) return parsed.problem;
  if (!Array.isArray(parsed.value)) return "it must be a list of tools, in brackets.";
  const names = new Set<string>();
  for (const [index, tool] of parsed.value.entries()) {
    const at = `tool ${index + 1}`;
    if (!isObject(tool) || !isObject(tool.function))
      return `${at} must be {"type": "function", "function": {…}}.`;
    const { name, parameters } = tool.function;
    if (typeof name !== "string" || name === "") return `${at} has no name.`;
    if (names.has(name)) return `${at}: “${name}” is there twice.`;
    names.add(name);
    if (parameters === undefined) continue;
    const problem = problemOfSchema(parameters);
    if (problem !== null) return `“${name}”, parameters: ${problem}`;
  }
  return null;
}
