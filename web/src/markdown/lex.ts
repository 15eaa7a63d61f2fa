// Markdown to tokens: GitHub's dialect, and formulas between dollars or backslashes with brackets.
import { Marked, type Token, type TokenizerAndRendererExtension } from "marked";

export interface MathToken {
  type: "math";
  raw: string;
  text: string;
  display: boolean;
}

const DISPLAY = /^(?:\$\$((?:[^$\\]|\\[\s\S]|\$(?!\$))+?)\$\$|\\\[([\s\S]+?)\\\])/;
// As in Pandoc: no space inside the dollars, and no digit behind, so that prices are no formulas.
const INLINE = /^(?:\$(?![\s$])((?:[^$\\\n]|\\.)+?)(?<![\s\\])\$(?![\d$])|\\\(((?:[^\\\n]|\\(?!\)).)+?)\\\))/;

const math: TokenizerAndRendererExtension = {
  name: "math",
  level: "inline",
  start: (source: string) => {
    const at = source.search(/\$|\\[([]/);
    return at < 0 ? undefined : at;
  },
  tokenizer(source: string): MathToken | undefined {
    const display = DISPLAY.exec(source);
    const match = display ?? INLINE.exec(source);
    if (match === null) return undefined;
    const text = (match[1] ?? match[2] ?? "").trim();
    return text === "" ? undefined : { type: "math", raw: match[0], text, display: display !== null };
  },
};

const marked = new Marked({ gfm: true, extensions: [math] });

/** Whether a text may use a definition that stands elsewhere in the answer. */
export const mayRefer = (raw: string): boolean => /\[[^\]\n]+\](?!\()/.test(raw);

export const lex = (raw: string, definitions = ""): Token[] =>
  marked.lexer(definitions === "" ? raw : `${raw}\n\n${definitions}`);
