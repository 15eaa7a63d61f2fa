import DOMPurify from "dompurify";
import { isOwnPicture, safeAddress } from "./address";

const TAGS = [
  "a", "abbr", "b", "blockquote", "br", "caption", "cite", "code", "dd", "del", "details", "div", "dl", "dt", "em",
  "figcaption", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "img", "ins", "kbd", "li", "mark", "ol", "p",
  "pre", "q", "rp", "rt", "ruby", "s", "samp", "small", "span", "strong", "sub", "summary", "sup", "table", "tbody",
  "td", "tfoot", "th", "thead", "time", "tr", "u", "ul", "var", "wbr",
]; // biome-ignore format: a list of words
const ATTRIBUTES = [
  "href",
  "title",
  "colspan",
  "rowspan",
  "align",
  "dir",
  "lang",
  "start",
  "open",
  "src",
  "alt",
  "datetime",
];

let purify: ReturnType<typeof DOMPurify> | null = null;

/** Return the harmless parts of HTML that a stranger wrote. Nothing in it is fetched and nothing in it runs. */
export function sanitize(html: string): DocumentFragment {
  purify ??= prepared();
  return purify.sanitize(html, {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ATTRIBUTES,
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  });
}

function prepared() {
  const own = DOMPurify(window);
  own.addHook("afterSanitizeAttributes", (element) => {
    if (element.tagName === "A") {
      const address = safeAddress(element.getAttribute("href") ?? "");
      if (address === null) element.removeAttribute("href");
      else {
        element.setAttribute("href", address);
        element.setAttribute("target", "_blank");
        element.setAttribute("rel", "noopener noreferrer nofollow");
      }
    } else if (element.tagName === "IMG") {
      const source = element.getAttribute("src") ?? "";
      if (!isOwnPicture(source))
        element.replaceWith(linkToPicture(source, element.getAttribute("alt") ?? ""));
    } else element.removeAttribute("src");
  });
  return own;
}

function linkToPicture(source: string, alt: string): Element {
  const address = safeAddress(source);
  const link = document.createElement(address === null ? "span" : "a");
  link.textContent = alt || source || "picture";
  if (address !== null) {
    link.setAttribute("href", address);
    link.setAttribute("target", "_blank");
    link.setAttribute("rel", "noopener noreferrer nofollow");
  }
  return link;
}
