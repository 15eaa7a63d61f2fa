// Reads Modelfiles as src/puna/store/modelfile.py does: one command `NAME value` a line; values that span lines
// are quoted.

export const COMMANDS = [
  "from",
  "license",
  "template",
  "system",
  "adapter",
  "draft",
  "renderer",
  "parser",
  "parameter",
  "message",
  "requires",
] as const;
export type CommandName = (typeof COMMANDS)[number];
const ROLES = ["system", "user", "assistant"];

export interface Command {
  name: CommandName;
  /** Of PARAMETER and MESSAGE: the parameter, the role. */
  key: string;
  value: string;
  /** From 1. */
  line: number;
}

export interface Problem {
  line: number;
  message: string;
  /** Whether it only is to be known. */
  warning?: boolean;
}

export interface Modelfile {
  commands: Command[];
  problems: Problem[];
}

/** Read a Modelfile. What is wrong with it is told with its line; the rest is read all the same. */
export function parseModelfile(text: string): Modelfile {
  const reader = new Reader(text.replace(/^\ufeff/, ""));
  const commands: Command[] = [];
  const problems: Problem[] = [];
  while (reader.skipToCommand()) {
    const line = reader.line;
    try {
      commands.push(readCommand(reader, line));
    } catch (error) {
      if (!(error instanceof ModelfileError)) throw error;
      problems.push({ line: error.line ?? line, message: error.message });
      reader.skipLine();
    }
  }
  if (!commands.some(({ name }) => name === "from") && !problems.some(({ warning }) => !warning)) {
    problems.push({ line: 1, message: "There is no FROM line: say which model or file it is made of." });
  }
  return { commands, problems };
}

class ModelfileError extends Error {
  constructor(
    message: string,
    readonly line?: number,
  ) {
    super(message);
  }
}

function readCommand(reader: Reader, line: number): Command {
  const word = reader.word();
  const name = word.toLowerCase() as CommandName;
  if (!COMMANDS.includes(name)) {
    const hint = nearest(
      word.toUpperCase(),
      COMMANDS.map((each) => each.toUpperCase()),
    );
    throw new ModelfileError(
      `${word ? `${word.slice(0, 40)} is no command` : "A line begins with a command, or with # for a comment"}` +
        (hint ? `; ${hint} is` : `: ${COMMANDS.map((each) => each.toUpperCase()).join(", ")}`),
    );
  }
  if (!reader.skipBlanks()) throw new ModelfileError(`${word.toUpperCase()} needs a value on the same line`);
  let key = "";
  if (name === "parameter" || name === "message") {
    key = reader.word();
    if (name === "message" && !ROLES.includes(key)) {
      throw new ModelfileError(
        `The role of a message is ${ROLES.slice(0, -1).join(", ")} or ${ROLES.at(-1)}`,
      );
    }
    if (key === "" || !reader.skipBlanks()) {
      throw new ModelfileError(`${word.toUpperCase()}${key ? ` ${key}` : ""} needs a value on the same line`);
    }
  }
  return { name, key, value: reader.value(line), line };
}

const LINE_END = /\r\n|\r|\n/g;

class Reader {
  private at = 0;
  private counted = 0;
  private lines = 1;

  constructor(private readonly text: string) {}

  /** The number of the line that is read, from 1. */
  get line(): number {
    for (; this.counted < this.at; this.counted += 1) {
      const character = this.text[this.counted];
      // The LF of a CRLF ends the line.
      if (character === "\n" || (character === "\r" && this.text[this.counted + 1] !== "\n")) this.lines += 1;
    }
    return this.lines;
  }

  skipToCommand(): boolean {
    while (this.at < this.text.length) {
      const character = this.text[this.at]!;
      if (character === "#") this.at = this.lineEnd()[0];
      else if (" \t\r\n".includes(character)) this.at += 1;
      else return true;
    }
    return false;
  }

  skipLine(): void {
    this.at = this.lineEnd()[1];
  }

  word(): string {
    const begin = this.at;
    while (/\w/.test(this.text[this.at] ?? "")) this.at += 1;
    return this.text.slice(begin, this.at);
  }

  skipBlanks(): boolean {
    const begin = this.at;
    while (this.text[this.at] === " " || this.text[this.at] === "\t") this.at += 1;
    return this.at > begin;
  }

  /** Read a value up to the first end of a line at which its quotes, if any, are closed. */
  value(line: number): string {
    const begin = this.at;
    const [end, next] = this.lineEnd();
    const first = this.text.slice(begin, end).trim();
    const quote = ['"""', '"'].find((each) => first.startsWith(each));
    if (quote === undefined) {
      this.at = next;
      return first;
    }
    const open = this.text.indexOf(quote, begin) + quote.length;
    let from = open;
    let to = end;
    let after = next;
    for (;;) {
      const stop = from + this.text.slice(from, to).trimEnd().length - quote.length;
      if (stop >= from && this.text.startsWith(quote, stop)) {
        this.at = after;
        return this.text.slice(open, stop);
      }
      if (to === this.text.length) {
        throw new ModelfileError("The quote that is opened here is never closed", line);
      }
      from = after;
      this.at = after;
      [to, after] = this.lineEnd();
    }
  }

  /** Where the line ends, and where the next one begins. */
  private lineEnd(): [number, number] {
    LINE_END.lastIndex = this.at;
    const found = LINE_END.exec(this.text);
    return found ? [found.index, found.index + found[0].length] : [this.text.length, this.text.length];
  }
}

/** Return the word that somebody may have meant, or null. */
export function nearest(word: string, known: readonly string[]): string | null {
  let best: string | null = null;
  let least = Math.max(1, Math.floor(word.length / 3)) + 1;
  for (const each of known) {
    const distance = edits(word, each);
    if (distance < least) {
      least = distance;
      best = each;
    }
  }
  return best;
}

/** Return how many letters must be changed, added or dropped (Levenshtein). */
function edits(a: string, b: string): number {
  let row = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= b.length; j += 1) {
      next.push(Math.min(next[j - 1]! + 1, row[j]! + 1, row[j - 1]! + (a[i - 1] === b[j - 1] ? 0 : 1)));
    }
    row = next;
  }
  return row[b.length]!;
}

/** Return a value as it is written in a Modelfile, quoted only where that is needed. */
export function quoted(value: string): string {
  const isPlain = value !== "" && value === value.trim() && !/[\r\n]/.test(value) && !value.startsWith('"');
  if (isPlain) return value;
  return value.includes('"') || /[\r\n]/.test(value) ? `"""${value}"""` : `"${value}"`;
}
