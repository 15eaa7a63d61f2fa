import type { Chat, Message } from "./types";

/** Return the messages from the first one to `leaf`. */
export function pathTo(messages: Message[], leaf: string | null): Message[] {
  const byId = new Map(messages.map((message) => [message.id, message]));
  const path: Message[] = [];
  const seen = new Set<string>();
  for (let at = leaf === null ? undefined : byId.get(leaf); at !== undefined; ) {
    if (seen.has(at.id)) break; // a circle, which only a damaged import can have
    seen.add(at.id);
    path.push(at);
    at = at.parent === null ? undefined : byId.get(at.parent);
  }
  return path.reverse();
}

const NAMES = { system: "System", user: "You", assistant: "Assistant", tool: "Tool" };

/** Return the branch of a chat that is shown, as Markdown. */
export function chatMarkdown(chat: Chat): string {
  const parts = [`# ${chat.title || "Chat"}`];
  for (const message of pathTo(chat.messages, chat.leaf)) {
    const name =
      message.role === "tool" && message.tool_name ? `Tool ${message.tool_name}` : NAMES[message.role];
    parts.push(`## ${name}${message.model ? ` (${message.model})` : ""}`);
    if (message.thinking) parts.push(quoted(message.thinking));
    for (const file of message.files) parts.push(`*${file.name}*`);
    if (message.content) parts.push(message.content);
    for (const call of message.calls) parts.push(fenced(`${call.name}(${call.arguments})`, "json"));
  }
  return `${parts.join("\n\n")}\n`;
}

const quoted = (text: string) =>
  text
    .trim()
    .split("\n")
    .map((line) => `> ${line}`.trimEnd())
    .join("\n");

/** Return a block of code whose fence is longer than any in the text. */
export function fenced(text: string, language = ""): string {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map((match) => match[0].length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text}\n${fence}`;
}
