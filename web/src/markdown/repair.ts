// What is left out or closed in the last block while it grows, so that marks do not flash by as text.

/** Return the text of an unfinished block without marks whose meaning is not known yet. */
export function repair(raw: string): string {
  const lineStart = raw.lastIndexOf("\n") + 1;
  const head = raw.slice(0, lineStart);
  const line = raw.slice(lineStart);
  // The mark of an item, a heading, a fence, or the line below a heading or a table's head.
  if (
    /^\s*(?:[-*+]|\d{1,9}[.)]?|#{1,6}|>+|`{1,2}|~{1,2}|-{2,}|={1,}|\$|\\)\s*$/.test(line) &&
    !/^\d+$/.test(raw)
  ) {
    return head;
  }
  if (/^\s*\|?[\s:|-]+$/.test(line) && line.includes("|")) return head;
  return head + repairInline(line, /^\s*\|/.test(line));
}

function repairInline(line: string, isRow: boolean): string {
  let text = line;
  const ticks = text.match(/(?<!\\)`/g)?.length ?? 0;
  if (ticks % 2 === 1) return isRow ? text : `${text.replace(/`$/, "")}${text.endsWith("`") ? "" : "`"}`;
  // A link without its end shows as its text, a picture not at all.
  text = text
    .replace(/!\[[^\]\n]*(?:\](?:\([^)\n]*)?)?$/, "")
    .replace(/\[([^\]\n]*)\]\([^)\n]*$/, "$1")
    .replace(/(?<!\])\[([^[\]\n]*)$/, "$1");
  const plain = text.replace(/`[^`\n]*`/g, (code) => " ".repeat(code.length));
  const bare = text.trimEnd();
  for (const mark of ["**", "~~"]) {
    const found = plain.split(mark).length - 1;
    if (found % 2 === 0) continue;
    if (bare.endsWith(mark)) text = bare.slice(0, -mark.length);
    else if (mark === "**" && bare.endsWith("*") && !bare.endsWith("**")) text = `${bare}*`;
    else text = `${bare}${mark}`;
    return text;
  }
  const single = plain.replaceAll("**", "").match(/(?<![\\\w*])\*(?=\S)|(?<=\S)\*(?![\w*])/g)?.length ?? 0;
  if (single % 2 === 1) {
    if (bare.endsWith("*")) return bare.slice(0, -1);
    return `${bare}*`;
  }
  return text;
}
