// Finds where a text stops being JSON, which browsers say differently or not at all.

const SPACE = /[ \t\r\n]*/y;
// biome-ignore lint/suspicious/noControlCharactersInRegex: strings of JSON have none
const TEXT = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[\da-fA-F]{4}))*"/y;
const PLAIN = /(?:-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)(?![\w.])/y;
const DEEPEST = 500;

class Mistake {
  constructor(
    readonly at: number,
    readonly said: string,
  ) {}
}

/** Return what is wrong with a text that is no JSON, with its line and column. */
export function mistakeIn(text: string): string {
  try {
    const end = space(text, value(text, space(text, 0), 0));
    throw new Mistake(end, "there is more behind the end");
  } catch (mistake) {
    if (!(mistake instanceof Mistake)) throw mistake;
    const lines = text.slice(0, mistake.at).split("\n");
    return `line ${lines.length}, column ${(lines.at(-1)?.length ?? 0) + 1}: ${mistake.said}.`;
  }
}

function match(pattern: RegExp, text: string, at: number): number {
  pattern.lastIndex = at;
  return pattern.test(text) ? pattern.lastIndex : -1;
}

const space = (text: string, at: number) => match(SPACE, text, at);

/** Return where the value that begins at `at` ends. Raises `Mistake`. */
function value(text: string, at: number, depth: number): number {
  const sign = text[at];
  if (sign === undefined) throw new Mistake(at, "a value is missing at the end");
  if (depth > DEEPEST) throw new Mistake(at, "it is nested too deeply");
  if (sign === "{" || sign === "[") return list(text, at, depth);
  const end = match(sign === '"' ? TEXT : PLAIN, text, at);
  if (end >= 0) return end;
  if (sign === '"') throw new Mistake(at, "a text has no end, or a sign in it that needs a backslash");
  if (sign === "'") throw new Mistake(at, "texts stand between double quotes");
  throw new Mistake(at, `a value is expected, not “${sign}”`);
}

function list(text: string, from: number, depth: number): number {
  const isObject = text[from] === "{";
  const close = isObject ? "}" : "]";
  let at = space(text, from + 1);
  if (text[at] === close) return at + 1;
  for (;;) {
    if (isObject) {
      const end = match(TEXT, text, at);
      if (end < 0) throw new Mistake(at, "a name between double quotes is expected");
      at = space(text, end);
      if (text[at] !== ":") throw new Mistake(at, "a colon is missing behind a name");
      at = space(text, at + 1);
    }
    at = space(text, value(text, at, depth + 1));
    if (text[at] === close) return at + 1;
    if (text[at] !== ",") throw new Mistake(at, `a comma or ${close} is missing`);
    at = space(text, at + 1);
    if (text[at] === close) throw new Mistake(at, `there is a comma before ${close}`);
  }
}
