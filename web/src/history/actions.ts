import { chats } from "../api/chats";
import type { ChatChange, ChatHead } from "../api/types";
import { navigate, route } from "../state/router";
import { confirm } from "../ui/ask";
import { fileName, saveFile } from "../ui/save_file";
import { toast, toastError } from "../ui/toast";
import { entries, noteChat, noteDeleted, reload, tellOthers } from "./chat_list";
import { withHead } from "./entries";

/** Seconds in which deleting can be undone; the server gives a minute. */
const UNDO_S = 30;

export const titleOf = (head: Pick<ChatHead, "title">): string => head.title || "Untitled chat";

export async function change(head: ChatHead, changes: ChatChange, doing: string): Promise<void> {
  try {
    noteChat(await chats().change(head.id, changes));
  } catch (error) {
    toastError(error, doing);
  }
}

export const rename = (head: ChatHead, title: string): Promise<void> =>
  change(head, { title: title.trim() }, "The chat was not renamed");

export const pin = (head: ChatHead, pinned: boolean): Promise<void> =>
  change(head, { pinned }, pinned ? "The chat was not pinned" : "The chat was not unpinned");

export async function remove(head: ChatHead): Promise<void> {
  const isShown = route.value.view === "chat" && route.value.item === head.id;
  const before = entries.value;
  noteDeleted(head.id);
  try {
    await chats().delete(head.id);
  } catch (error) {
    entries.value = before;
    toastError(error, "The chat was not deleted");
    return;
  }
  tellOthers();
  if (isShown) navigate("chat", null, { replace: true });
  toast({
    text: `Deleted “${shortened(titleOf(head))}”`,
    seconds: UNDO_S,
    action: { label: "Undo", run: () => void bringBack(head, isShown) },
  });
}

async function bringBack(head: ChatHead, show: boolean): Promise<void> {
  try {
    const restored = await chats().restore(head.id);
    entries.value = withHead(entries.value, restored);
    tellOthers();
    if (show) navigate("chat", head.id);
  } catch (error) {
    toastError(error, "The chat could not be restored");
  }
}

export async function exportChat(head: ChatHead, format: "json" | "markdown"): Promise<void> {
  try {
    const content = await chats().exportChat(head.id, format);
    saveFile(content, fileName(titleOf(head), format === "json" ? "json" : "md"));
  } catch (error) {
    toastError(error, "The chat was not exported");
  }
}

export async function exportAll(): Promise<void> {
  try {
    const day = new Date().toISOString().slice(0, 10);
    saveFile(await chats().exportAll(), `puna-chats-${day}.json`);
  } catch (error) {
    toastError(error, "The chats were not exported");
  }
}

export async function removeAll(): Promise<void> {
  const sure = await confirm({
    title: "Delete all chats?",
    body: "All your chats with their files are deleted for good. There is no undo; export them first if you may want them again.",
    action: "Delete all chats",
    danger: true,
  });
  if (!sure) return;
  try {
    await chats().deleteAll();
    if (route.value.view === "chat") navigate("chat", null, { replace: true });
    toast({ text: "All chats were deleted.", kind: "success" });
  } catch (error) {
    toastError(error, "The chats were not deleted");
  }
  await reload();
  tellOthers();
}

const shortened = (text: string) => (text.length > 42 ? `${text.slice(0, 40).trimEnd()}…` : text);
