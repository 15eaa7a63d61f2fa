// Reads the HTML that highlight.js returns, which knows one tag, into lines of text with classes.

export interface Piece {
  text: string;
  /** "hljs-keyword", or "" for text without a colour. */
  name: string;
}

export type Line = Piece[];

const REFERENCES: Record<string, string> = {
  "&amp;": "&",
  "&lt;": "<",
  "&gt;": ">",
  "&quot;": '"',
  "&#x27;": "'",
};

/** Return the lines of highlighted code. Tags other than spans with a class are text. */
export function linesOf(html: string): Line[] {
  const lines: Line[] = [[]];
  const names: string[] = [];
  const add = (text: string) => {
    const clear = text.replace(
      /&(?:amp|lt|gt|quot|#x27);/g,
      (reference) => REFERENCES[reference] ?? reference,
    );
    clear.split("\n").forEach((part, index) => {
      if (index > 0) lines.push([]);
      if (part !== "") lines.at(-1)?.push({ text: part, name: names.at(-1) ?? "" });
    });
  };
  const tag = /<span class="([\w\s-]*)">|<\/span>/g;
  let at = 0;
  for (let match = tag.exec(html); match !== null; match = tag.exec(html)) {
    add(html.slice(at, match.index));
    at = match.index + match[0].length;
    if (match[1] === undefined) names.pop();
    else names.push(match[1]);
  }
  add(html.slice(at));
  return lines;
}

export const plainLines = (text: string): Line[] =>
  text.split("\n").map((line) => (line === "" ? [] : [{ text: line, name: "" }]));
