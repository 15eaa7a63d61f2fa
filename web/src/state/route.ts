export type ViewName = "chat" | "models" | "engine" | "settings";

/** A view, what it is about (the id of a chat, the name of a model, a section), and the rest of the address. */
export interface Route {
  view: ViewName;
  item: string | null;
  query: Record<string, string>;
}

const VIEWS: readonly ViewName[] = ["chat", "models", "engine", "settings"];

/** Read a hash such as "#/chat/0123456789abcdef?message=1"; anything unknown is a new chat. */
export function parseRoute(hash: string): Route {
  const [path = "", search = ""] = split(hash.replace(/^#/, ""), "?");
  const [view = "", ...rest] = path.split("/").filter((part) => part !== "");
  if (!VIEWS.includes(view as ViewName)) return { view: "chat", item: null, query: {} };
  const item = rest.map(decode).join("/");
  return {
    view: view as ViewName,
    item: item || null,
    query: Object.fromEntries(new URLSearchParams(search)),
  };
}

/** Return the hash of a route; a model's slashes and colons stay readable. */
export function hashOf(view: ViewName, item?: string | null, query: Record<string, string> = {}): string {
  const path = item ? `/${item.split("/").map(encode).join("/")}` : "";
  const search = new URLSearchParams(query).toString();
  return `#/${view}${path}${search ? `?${search}` : ""}`;
}

function split(text: string, separator: string): string[] {
  const at = text.indexOf(separator);
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + separator.length)];
}

const encode = (part: string) => encodeURIComponent(part).replaceAll("%3A", ":");

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
