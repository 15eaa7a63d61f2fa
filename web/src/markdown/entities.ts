const BASIC: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

let area: HTMLTextAreaElement | null = null;

/** Return a text with its character references resolved: "&eacute;" as "é". */
export const decoded = (text: string): string =>
  text.includes("&")
    ? text.replace(/&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z][A-Za-z\d]{1,31});/g, resolve)
    : text;

function resolve(reference: string): string {
  const name = reference.slice(1, -1);
  if (name.startsWith("#")) {
    const code = /^#x/i.test(name) ? Number.parseInt(name.slice(2), 16) : Number(name.slice(1));
    return code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff)
      ? String.fromCodePoint(code)
      : "\ufffd";
  }
  const basic = BASIC[name];
  if (basic !== undefined) return basic;
  if (typeof document === "undefined") return reference;
  // Only a single reference of letters and digits gets here, so nothing in it can be a tag.
  area ??= document.createElement("textarea");
  area.innerHTML = reference;
  return area.value;
}
