// Splits a Markdown text that grows into blocks which stay as they are once the next one has begun, so that only the
// last block is parsed again. The result depends on the text alone, not on the pieces in which it arrived.

export interface TextBlock {
  kind: "text";
  raw: string;
}

export interface CodeBlock {
  kind: "code";
  raw: string;
  /** What stands behind the opening fence: "python", "html title=x". */
  info: string;
  text: string;
  /** Whether the closing fence has come. */
  closed: boolean;
}

export interface MathBlock {
  kind: "math";
  raw: string;
  /** TeX. */
  text: string;
}

export type Block = TextBlock | CodeBlock | MathBlock;

type Mode =
  | { kind: "none" }
  | { kind: "paragraph" }
  | { kind: "indented" }
  | { kind: "list"; blank: boolean; fence: Fence | null }
  | { kind: "code"; fence: Fence }
  | { kind: "math"; close: string };

interface Fence {
  mark: string;
  /** Columns before the fence: as many are taken off the lines of its code. */
  indent: number;
  info: string;
}

/** A text that is being split. */
export interface Splitting {
  readonly done: readonly Block[];
  /** Complete lines of the block under way. */
  readonly open: string;
  readonly mode: Mode;
  /** The line under way. */
  readonly tail: string;
  /** Definitions of links, "[name]: address", which count in all blocks. */
  readonly definitions: string;
}

export const EMPTY: Splitting = { done: [], open: "", mode: { kind: "none" }, tail: "", definitions: "" };

/** A list longer than this goes on in another block at its next item, so that no block grows without end. */
const LONG_LIST = 6000;

/** Return the splitting of the text with `more` behind it. */
export function append(splitting: Splitting, more: string): Splitting {
  let end = more.indexOf("\n");
  if (end < 0) return more === "" ? splitting : { ...splitting, tail: splitting.tail + more };
  const work = new Work(splitting);
  let line = splitting.tail + more.slice(0, end + 1);
  let at = end + 1;
  for (;;) {
    work.take(line);
    end = more.indexOf("\n", at);
    if (end < 0) break;
    line = more.slice(at, end + 1);
    at = end + 1;
  }
  return work.result(more.slice(at));
}

/** Return the blocks of the text so far, the unfinished line included. */
export function blocksOf(splitting: Splitting): { blocks: readonly Block[]; definitions: string } {
  const work = new Work(splitting);
  if (splitting.tail !== "") work.take(splitting.tail);
  work.finish();
  const { done, definitions } = work.result("");
  return { blocks: done, definitions };
}

export const split = (text: string): readonly Block[] => blocksOf(append(EMPTY, text)).blocks;

const FENCE = /^( {0,3})(`{3,}|~{3,})([^\n]*)/;
const HEADING = /^ {0,3}#{1,6}(?:[ \t]|\r?\n|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})\r?\n?$/;
const ITEM = /^( {0,3})(?:[-*+]|\d{1,9}[.)])[ \t]+\S/;
const INNER_ITEM = /^[ \t]*(?:[-*+]|\d{1,9}[.)])(?:[ \t]+|\r?\n?$)/;
const DEFINITION = /^ {0,3}\[[^\]\n^][^\]\n]*\]:[ \t]*\S+/;
const INDENT = /^(?: {4}|\t)/;

const isBlank = (line: string) => line.trim() === "";

class Work {
  private done: Block[] | null = null;
  private open: string;
  private mode: Mode;
  private definitions: string;

  constructor(private readonly before: Splitting) {
    this.open = before.open;
    this.mode = before.mode;
    this.definitions = before.definitions;
  }

  result(tail: string): Splitting {
    return {
      done: this.done ?? this.before.done,
      open: this.open,
      mode: this.mode,
      tail,
      definitions: this.definitions,
    };
  }

  finish(): void {
    if (this.mode.kind === "code") this.close(codeBlock(this.open, this.mode.fence, false));
    else if (this.mode.kind !== "none") this.closeText();
  }

  take(line: string): void {
    const { mode } = this;
    switch (mode.kind) {
      case "none":
        this.start(line);
        return;
      case "code":
        this.open += line;
        if (closes(line, mode.fence)) this.close(codeBlock(this.open, mode.fence, true));
        return;
      case "math":
        this.inMath(line, mode.close);
        return;
      case "indented":
        if (INDENT.test(line) || isBlank(line)) this.open += line;
        else {
          this.closeText();
          this.start(line);
        }
        return;
      case "list":
        this.inList(line, mode);
        return;
      case "paragraph":
        if (isBlank(line)) {
          this.open += line;
          this.closeText();
        } else if (interrupts(line)) {
          this.closeText();
          this.start(line);
        } else this.open += line;
    }
  }

  private start(line: string): void {
    if (isBlank(line)) return;
    this.open = line;
    const fence = fenceOf(line);
    if (fence !== null) {
      this.mode = { kind: "code", fence };
      return;
    }
    if (HEADING.test(line) || RULE.test(line)) {
      this.closeText();
      return;
    }
    const math = mathOf(line);
    if (math !== null) {
      if (math.text === null) this.mode = { kind: "math", close: math.close };
      else this.close({ kind: "math", raw: line, text: math.text });
    } else if (ITEM.test(line)) this.mode = { kind: "list", blank: false, fence: innerFence(line) };
    else if (INDENT.test(line)) this.mode = { kind: "indented" };
    else {
      if (DEFINITION.test(line)) this.definitions += line.endsWith("\n") ? line : `${line}\n`;
      this.mode = { kind: "paragraph" };
    }
  }

  private inMath(line: string, close: string): void {
    // TeX has no empty lines in a formula, so this was none.
    if (isBlank(line)) {
      this.open += line;
      this.closeText();
      return;
    }
    this.open += line;
    const at = line.indexOf(close);
    if (at < 0) return;
    if (line.slice(at + close.length).trim() !== "") this.mode = { kind: "paragraph" };
    else {
      const raw = this.open;
      const text = raw.slice(raw.indexOf(openingOf(close)) + close.length, raw.lastIndexOf(close));
      this.close({ kind: "math", raw, text: text.trim() });
    }
  }

  private inList(line: string, mode: Extract<Mode, { kind: "list" }>): void {
    if (isBlank(line)) {
      this.open += line;
      this.mode = { ...mode, blank: true };
      return;
    }
    const isIndented = /^(?: {2}|\t)/.test(line);
    if (mode.fence !== null && isIndented) {
      this.open += line;
      this.mode = {
        kind: "list",
        blank: false,
        fence: closes(line.trimStart(), mode.fence) ? null : mode.fence,
      };
      return;
    }
    if (!isIndented) {
      const isItem = ITEM.test(line) && !RULE.test(line);
      if (isItem ? this.open.length > LONG_LIST : mode.blank || interrupts(line)) {
        this.closeText();
        this.start(line);
        return;
      }
    }
    this.open += line;
    this.mode = { kind: "list", blank: false, fence: innerFence(line) };
  }

  private closeText(): void {
    this.close({ kind: "text", raw: this.open });
  }

  private close(block: Block): void {
    this.done ??= [...this.before.done];
    this.done.push(block);
    this.open = "";
    this.mode = { kind: "none" };
  }
}

/** Whether a line ends a paragraph, or what goes on lazily behind an item. */
function interrupts(line: string): boolean {
  if (fenceOf(line) !== null || HEADING.test(line) || ITEM.test(line)) return true;
  // Three dashes right below a paragraph make it a heading.
  if (/^ {0,3}(?:\*[ \t]*){3,}\r?\n?$|^ {0,3}(?:_[ \t]*){3,}\r?\n?$/.test(line)) return true;
  return mathOf(line) !== null;
}

function fenceOf(line: string): Fence | null {
  const match = FENCE.exec(line);
  if (match === null) return null;
  const [, indent = "", mark = "", info = ""] = match;
  if (mark.startsWith("`") && info.includes("`")) return null;
  return { mark, indent: indent.length, info: info.trim() };
}

/** Return the fence of code within an item, which may stand right behind the item's mark. */
const innerFence = (line: string): Fence | null =>
  fenceOf(line.replace(INNER_ITEM, "").replace(INNER_ITEM, "").trimStart());

function closes(line: string, fence: Fence): boolean {
  const text = line.trimEnd();
  const mark = text.trimStart();
  return (
    text.length - mark.length <= 3 &&
    mark.length >= fence.mark.length &&
    mark === (fence.mark[0] ?? "").repeat(mark.length)
  );
}

const openingOf = (close: string) => (close === "$$" ? "$$" : "\\[");

/** Return the formula of a line that has it all, or how the one that begins there ends. */
function mathOf(line: string): { close: string; text: string | null } | null {
  const text = line.trim();
  if (/^ {4}|^\t/.test(line)) return null;
  const close = text.startsWith("$$") ? "$$" : text.startsWith("\\[") ? "\\]" : null;
  if (close === null) return null;
  const at = text.indexOf(close, 2);
  if (at < 0) return { close, text: null };
  const formula = text.slice(2, at).trim();
  return at + 2 === text.length && formula !== "" ? { close, text: formula } : null;
}

function codeBlock(raw: string, fence: Fence, closed: boolean): CodeBlock {
  const begin = raw.indexOf("\n") + 1;
  let text = begin === 0 ? "" : raw.slice(begin);
  if (closed) {
    const last = text.lastIndexOf("\n", text.length - 2);
    text = last < 0 ? "" : text.slice(0, last);
  } else if (text.endsWith("\n")) text = text.slice(0, -1);
  if (fence.indent > 0) text = text.replace(new RegExp(`^ {1,${fence.indent}}`, "gm"), "");
  return { kind: "code", raw, info: fence.info, text, closed };
}
