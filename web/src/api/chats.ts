import { keepsHistory } from "../state/session";
import { client } from "./client";
import { TabChats } from "./tab_chats";
import type {
  Chat,
  ChatChange,
  ChatHead,
  ChatPage,
  ChatQuery,
  ImportReport,
  Message,
  NewChat,
  NewMessage,
} from "./types";

/** Where chats are kept: on the server, or in this tab where the server keeps none. */
export interface ChatStore {
  /** Whether chats outlive the tab, and the server writes the answers of runs into them. */
  readonly kept: boolean;
  list(query: ChatQuery, signal?: AbortSignal): Promise<ChatPage>;
  create(chat: NewChat): Promise<Chat>;
  get(id: string, signal?: AbortSignal): Promise<Chat>;
  change(id: string, change: ChatChange): Promise<ChatHead>;
  /** Delete a chat, which `restore` brings back within a minute. */
  delete(id: string): Promise<void>;
  restore(id: string): Promise<ChatHead>;
  deleteAll(): Promise<void>;
  addMessage(id: string, message: NewMessage): Promise<Message>;
  /** Keep what a run has said so far, or its end. On the server, runs do that themselves. */
  keepMessage(id: string, message: Message): Promise<void>;
  exportChat(id: string, format: "json" | "markdown"): Promise<Blob>;
  exportAll(): Promise<Blob>;
  import(file: Blob): Promise<ImportReport>;
}

const path = (id: string, rest = "") => `api/puna/chats/${encodeURIComponent(id)}${rest}`;

class ServerChats implements ChatStore {
  readonly kept = true;

  list(query: ChatQuery, signal?: AbortSignal): Promise<ChatPage> {
    return client.json("api/puna/chats", { query: { ...query }, signal });
  }

  create(chat: NewChat): Promise<Chat> {
    return client.json("api/puna/chats", { json: chat });
  }

  get(id: string, signal?: AbortSignal): Promise<Chat> {
    return client.json(path(id), { signal });
  }

  change(id: string, change: ChatChange): Promise<ChatHead> {
    return client.json(path(id), { method: "PATCH", json: change });
  }

  delete(id: string): Promise<void> {
    return client.run(path(id), { method: "DELETE" });
  }

  restore(id: string): Promise<ChatHead> {
    return client.json(path(id, "/restore"), { method: "POST" });
  }

  deleteAll(): Promise<void> {
    return client.run("api/puna/chats", { method: "DELETE" });
  }

  addMessage(id: string, message: NewMessage): Promise<Message> {
    return client.json(path(id, "/messages"), { json: message });
  }

  async keepMessage(): Promise<void> {}

  async exportChat(id: string, format: "json" | "markdown"): Promise<Blob> {
    return (await client.fetch(path(id, "/export"), { query: { format } })).blob();
  }

  async exportAll(): Promise<Blob> {
    return (await client.fetch("api/puna/export")).blob();
  }

  import(file: Blob): Promise<ImportReport> {
    return client.json("api/puna/import", { method: "POST", body: file });
  }
}

const onServer = new ServerChats();
const inTab = new TabChats();

// Before chats that are nowhere else are lost, the browser asks.
globalThis.addEventListener?.("beforeunload", (event) => {
  if (!keepsHistory.value && !inTab.isEmpty) event.preventDefault();
});

export const chats = (): ChatStore => (keepsHistory.value ? onServer : inTab);
