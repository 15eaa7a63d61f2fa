import type { ChatStore } from "./chats";
import { ApiError } from "./client";
import { chatMarkdown } from "./markdown_export";
import type {
  Chat,
  ChatChange,
  ChatEntry,
  ChatHead,
  ChatPage,
  ChatQuery,
  Counted,
  ImportReport,
  Message,
  NewChat,
  NewMessage,
  SnippetPart,
} from "./types";

/** The format of exports, of the server and of this page. */
export const EXPORT_FORMAT = "puna-chats";

/** Chats that live as long as the tab, with the behaviour of the server's. */
export class TabChats implements ChatStore {
  readonly kept = false;
  private readonly all = new Map<string, Chat>();
  private readonly deleted = new Map<string, Chat>();

  constructor(
    private readonly now: () => number = () => Date.now() / 1000,
    private readonly newId: () => string = randomId,
  ) {}

  async list(query: ChatQuery): Promise<ChatPage> {
    const words = (query.query ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    const wanted: ChatEntry[] = [];
    for (const chat of this.all.values()) {
      if (query.folder && chat.folder !== query.folder) continue;
      if (query.tag && !chat.tags.includes(query.tag)) continue;
      if (words.length === 0) wanted.push(headOf(chat));
      else {
        const snippet = snippetOf(chat, words);
        if (snippet !== null) wanted.push({ ...headOf(chat), snippet });
      }
    }
    wanted.sort(inOrder);
    const start = Number(query.cursor ?? 0);
    const end = start + (query.limit ?? 50);
    const chats = [...this.all.values()];
    return {
      chats: wanted.slice(start, end),
      cursor: end < wanted.length ? String(end) : null,
      folders: counted(chats.map((chat) => chat.folder).filter(Boolean)),
      tags: counted(chats.flatMap((chat) => chat.tags)),
    };
  }

  async create(chat: NewChat): Promise<Chat> {
    const now = this.now();
    const created: Chat = {
      id: this.newId(),
      title: chat.title ?? "",
      titled: Boolean(chat.title),
      created: now,
      updated: now,
      pinned: false,
      folder: chat.folder ?? "",
      tags: chat.tags ?? [],
      model: "",
      settings: chat.settings ?? {},
      leaf: null,
      messages: [],
    };
    this.all.set(created.id, created);
    return structuredClone(created);
  }

  async get(id: string): Promise<Chat> {
    return structuredClone(this.find(id));
  }

  async change(id: string, change: ChatChange): Promise<ChatHead> {
    const chat = this.find(id);
    Object.assign(chat, structuredClone(change));
    if (change.title !== undefined) chat.titled = change.title !== "";
    if (change.title === "") nameAfterQuestion(chat);
    return headOf(chat);
  }

  async delete(id: string): Promise<void> {
    this.deleted.set(id, this.find(id));
    this.all.delete(id);
  }

  async restore(id: string): Promise<ChatHead> {
    const chat = this.deleted.get(id);
    if (chat === undefined) throw missing();
    this.deleted.delete(id);
    this.all.set(id, chat);
    return headOf(chat);
  }

  async deleteAll(): Promise<void> {
    this.all.clear();
    this.deleted.clear();
  }

  async addMessage(id: string, message: NewMessage): Promise<Message> {
    const added: Message = {
      id: this.newId(),
      parent: message.parent,
      role: message.role,
      content: message.content,
      thinking: message.thinking ?? "",
      calls: message.calls ?? [],
      tool_name: message.tool_name ?? "",
      tool_call_id: message.tool_call_id ?? "",
      files: message.files ?? [],
      created: this.now(),
      model: "",
      stats: null,
      error: null,
      state: "done",
    };
    await this.keepMessage(id, added);
    return added;
  }

  async keepMessage(id: string, message: Message): Promise<void> {
    const chat = this.find(id);
    const at = chat.messages.findIndex((each) => each.id === message.id);
    if (at < 0) {
      chat.messages.push(structuredClone(message));
      chat.leaf = message.id;
    } else chat.messages[at] = structuredClone(message);
    chat.updated = this.now();
    if (message.model) chat.model = message.model;
    if (!chat.titled) nameAfterQuestion(chat);
  }

  async exportChat(id: string, format: "json" | "markdown"): Promise<Blob> {
    const chat = this.find(id);
    if (format === "markdown") return new Blob([chatMarkdown(chat)], { type: "text/markdown" });
    return exported([chat]);
  }

  async exportAll(): Promise<Blob> {
    return exported([...this.all.values()]);
  }

  async import(file: Blob): Promise<ImportReport> {
    let given: unknown;
    try {
      given = JSON.parse(await file.text());
    } catch {
      throw new ApiError(400, "The file is not JSON.");
    }
    const { format, chats } = (given ?? {}) as { format?: unknown; chats?: unknown };
    if (format !== EXPORT_FORMAT || !Array.isArray(chats)) {
      throw new ApiError(400, "Without history on the server, only exports of Puna can be imported.");
    }
    const report: ImportReport = { imported: 0, skipped: [] };
    for (const each of chats as Partial<Chat>[]) {
      if (typeof each?.id !== "string" || !Array.isArray(each.messages)) {
        report.skipped.push({ title: String(each?.title ?? "a chat"), reason: "it has no messages" });
        continue;
      }
      const chat = await this.create({});
      this.all.set(chat.id, { ...chat, ...each, id: chat.id } as Chat);
      report.imported += 1;
    }
    return report;
  }

  get isEmpty(): boolean {
    return this.all.size === 0;
  }

  private find(id: string): Chat {
    const chat = this.all.get(id);
    if (chat === undefined) throw missing();
    return chat;
  }
}

const missing = () => new ApiError(404, "There is no such chat: it was deleted, or lived in another tab.");

function randomId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function headOf(chat: Chat): ChatHead {
  const { settings, leaf, messages, ...head } = chat;
  return { ...head, tags: [...head.tags] };
}

/** Pinned chats first, then the last used. */
export const inOrder = (one: ChatHead, other: ChatHead): number =>
  Number(other.pinned) - Number(one.pinned) || other.updated - one.updated;

function counted(names: string[]): Counted[] {
  const counts = new Map<string, number>();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].map(([name, count]) => ({ name, count })).sort((a, b) => a.name.localeCompare(b.name));
}

function nameAfterQuestion(chat: Chat): void {
  const question = chat.messages.find((message) => message.role === "user" && message.content.trim() !== "");
  chat.title = [...(question?.content ?? "").trim().split(/\s*\n/, 1).join("")].slice(0, 80).join("");
}

/** Return the part of a chat that has all the words, or null if none has. */
function snippetOf(chat: Chat, words: string[]): SnippetPart[] | null {
  for (const text of [chat.title, ...chat.messages.map((message) => message.content)]) {
    const lower = text.toLowerCase();
    if (words.every((word) => lower.includes(word))) return marked(text, words);
  }
  return null;
}

/** Return the surroundings of the first word in `text`, with all words marked. */
export function marked(text: string, words: string[]): SnippetPart[] {
  const lower = text.toLowerCase();
  const first = Math.min(...words.map((word) => lower.indexOf(word)).filter((at) => at >= 0));
  const start = Math.max(0, first - 40);
  const end = Math.min(text.length, first + 120);
  const parts: SnippetPart[] = start > 0 ? [{ text: "…", hit: false }] : [];
  let at = start;
  while (at < end) {
    const found = words
      .map((word) => ({ word, index: lower.indexOf(word, at) }))
      .filter(({ index }) => index >= 0 && index < end)
      .sort((a, b) => a.index - b.index || b.word.length - a.word.length)[0];
    if (found === undefined) break;
    if (found.index > at) parts.push({ text: text.slice(at, found.index), hit: false });
    at = found.index + found.word.length;
    parts.push({ text: text.slice(found.index, at), hit: true });
  }
  if (at < end) parts.push({ text: text.slice(at, end), hit: false });
  if (end < text.length) parts.push({ text: "…", hit: false });
  return parts;
}

function exported(chats: Chat[]): Blob {
  const file = { format: EXPORT_FORMAT, version: 1, chats };
  return new Blob([JSON.stringify(file, null, 1)], { type: "application/json" });
}
