import { useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import type { ChatEntry } from "../api/types";
import { uncover } from "../shell/layout";
import { hashOf } from "../state/route";
import { route } from "../state/router";
import { Download, Edit, Folder, Pin, Trash, Unpin } from "../ui/icons";
import { MenuButton, type MenuEntry } from "../ui/menu";
import { exportChat, pin, remove, rename, titleOf } from "./actions";
import { answering, folder } from "./chat_list";

export interface ChatRowProps {
  chat: ChatEntry;
  onPlace: (chat: ChatEntry) => void;
}

/** A chat in the list. F2 renames it, Delete deletes it; all else is in its menu. */
export function ChatRow({ chat, onPlace }: ChatRowProps) {
  const renaming = useSignal(false);
  const link = useRef<HTMLAnchorElement>(null);
  const isShown = route.value.view === "chat" && route.value.item === chat.id;
  const isAnswering = answering.value.has(chat.id);
  const title = titleOf(chat);

  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "F2") renaming.value = true;
    else if (event.key === "Delete") {
      focusNeighbour(link.current);
      void remove(chat);
    } else return;
    event.preventDefault();
  };

  if (renaming.value) {
    return (
      <li class="chat-row">
        <RenameField
          title={chat.title}
          onDone={(text) => {
            renaming.value = false;
            if (text !== null && text.trim() !== chat.title) void rename(chat, text);
            requestAnimationFrame(() => link.current?.focus());
          }}
        />
      </li>
    );
  }

  const menu = (): MenuEntry[] => [
    {
      label: "Rename",
      icon: Edit,
      hint: "F2",
      onSelect: () => {
        renaming.value = true;
      },
    },
    chat.pinned
      ? { label: "Unpin", icon: Unpin, onSelect: () => void pin(chat, false) }
      : { label: "Pin", icon: Pin, onSelect: () => void pin(chat, true) },
    { label: "Folder and tags…", icon: Folder, onSelect: () => onPlace(chat) },
    null,
    { label: "Export as Markdown", icon: Download, onSelect: () => void exportChat(chat, "markdown") },
    { label: "Export as JSON", icon: Download, onSelect: () => void exportChat(chat, "json") },
    null,
    { label: "Delete", icon: Trash, hint: "Del", danger: true, onSelect: () => void remove(chat) },
  ];

  return (
    <li class="chat-row">
      <a
        ref={link}
        class="chat-link"
        href={hashOf("chat", chat.id)}
        aria-current={isShown ? "page" : undefined}
        onClick={uncover}
        onKeyDown={onKeyDown}
        onDblClick={() => {
          renaming.value = true;
        }}
      >
        <span class="chat-line">
          {isAnswering && <span class="answering" role="img" aria-label="Answering" />}
          <span class="truncate grow" dir="auto">
            {title}
          </span>
          {chat.folder !== "" && folder.value === "" && (
            <span class="chat-folder truncate" dir="auto">
              {chat.folder}
            </span>
          )}
        </span>
        {chat.snippet && (
          <span class="chat-snippet" dir="auto">
            {chat.snippet.map((part, index) => (part.hit ? <mark key={index}>{part.text}</mark> : part.text))}
          </span>
        )}
      </a>
      <MenuButton label={`Actions for ${title}`} items={menu} size="s" class="chat-menu" align="end" />
    </li>
  );
}

function RenameField({ title, onDone }: { title: string; onDone: (text: string | null) => void }) {
  const text = useSignal(title);
  const input = useRef<HTMLInputElement>(null);
  const isDone = useRef(false);
  const done = (result: string | null) => {
    if (isDone.current) return;
    isDone.current = true;
    onDone(result);
  };
  useLayoutEffect(() => {
    input.current?.focus();
    input.current?.select();
  }, []);
  return (
    <input
      ref={input}
      class="input chat-rename"
      aria-label="Title of the chat"
      dir="auto"
      maxLength={200}
      value={text.value}
      onInput={(event) => {
        text.value = event.currentTarget.value;
      }}
      onBlur={() => done(text.value)}
      onKeyDown={(event) => {
        if (event.isComposing) return;
        if (event.key === "Enter") done(text.value);
        else if (event.key === "Escape") done(null);
        else return;
        event.preventDefault();
        event.stopPropagation();
      }}
    />
  );
}

/** Focus the next chat of the list, or the one before, when this one goes. */
function focusNeighbour(link: HTMLElement | null): void {
  const all = [...document.querySelectorAll<HTMLElement>(".chat-link")];
  const at = link === null ? -1 : all.indexOf(link);
  (all[at + 1] ?? all[at - 1])?.focus();
}
