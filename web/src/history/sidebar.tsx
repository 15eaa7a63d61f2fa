import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { ChatEntry } from "../api/types";
import { isNarrow, sidebarDrawn } from "../shell/layout";
import { now } from "../state/clock";
import { sidebarOpen } from "../state/preferences";
import { keepsHistory } from "../state/session";
import { isMac, keyNames, useShortcut } from "../state/shortcuts";
import { Button, IconButton } from "../ui/button";
import { Close, Filter, Folder, Search, Tag } from "../ui/icons";
import { MenuButton, type MenuEntry } from "../ui/menu";
import { Notice } from "../ui/notice";
import { Spinner } from "../ui/progress";
import {
  entries,
  folder,
  folders,
  hasMore,
  isLoading,
  listError,
  loadMore,
  reload,
  search,
  startList,
  tag,
  tags,
} from "./chat_list";
import { ChatRow } from "./chat_row";
import { sections } from "./entries";
import { PlaceDialog } from "./place_dialog";

const SEARCH_ID = "chat-search";

function focusSearch(): void {
  if (isNarrow.value) sidebarDrawn.value = true;
  else sidebarOpen.value = true;
  // The sidebar may have to appear first.
  requestAnimationFrame(() => {
    const input = document.getElementById(SEARCH_ID) as HTMLInputElement | null;
    input?.focus();
    input?.select();
  });
}

const notHere = () => false;

/** Registers what works whether the sidebar is open or not. */
export function HistoryShortcuts() {
  useShortcut({ keys: "mod+k", label: "Search chats", group: "Everywhere", run: focusSearch });
  // Those of the list are listed here, and work where they are: in the list.
  useShortcut({ keys: "f2", label: "Rename the chat", group: "In the list of chats", run: notHere });
  useShortcut({ keys: "delete", label: "Delete the chat", group: "In the list of chats", run: notHere });
  useShortcut({ keys: "arrowdown", label: "Next chat", group: "In the list of chats", run: notHere });
  useShortcut({ keys: "arrowup", label: "Previous chat", group: "In the list of chats", run: notHere });
  return null;
}

let typing: ReturnType<typeof setTimeout> | undefined;

function setSearch(text: string): void {
  search.value = text;
  clearTimeout(typing);
  typing = setTimeout(() => void reload(), text === "" ? 0 : 180);
}

function setFilter(nextFolder: string, nextTag: string): void {
  folder.value = nextFolder;
  tag.value = nextTag;
  void reload();
}

export function ChatHistory() {
  const placing = useSignal<ChatEntry | null>(null);
  useEffect(startList, []);
  const isSearch = search.value.trim() !== "";
  const isFiltered = folder.value !== "" || tag.value !== "";
  const groups = isSearch ? [{ title: "Found", chats: entries.value }] : sections(entries.value, now.value);

  return (
    <>
      <SearchBar />
      {!keepsHistory.value && (
        <p class="history-note faint small">
          This server keeps no history: chats live in this tab and are gone when it is closed.
        </p>
      )}
      <div class="chat-list" role="none" onKeyDown={moveInList}>
        {listError.value !== null && (
          <div class="history-note">
            <Notice
              kind="error"
              actions={
                <Button size="s" onClick={() => void reload()}>
                  Retry
                </Button>
              }
            >
              {listError.value}
            </Notice>
          </div>
        )}
        {groups.map(({ title, chats }) => (
          <section key={title} aria-label={title}>
            {chats.length > 0 && <h2 class="chat-heading">{title}</h2>}
            <ul>
              {chats.map((chat) => (
                <ChatRow
                  key={chat.id}
                  chat={chat}
                  onPlace={(chosen) => {
                    placing.value = chosen;
                  }}
                />
              ))}
            </ul>
          </section>
        ))}
        {entries.value.length === 0 && !isLoading.value && listError.value === null && (
          <p class="history-note faint small" role="status">
            {isSearch
              ? "No chat has these words."
              : isFiltered
                ? "No chat is in here."
                : "Your chats appear here."}
          </p>
        )}
        {hasMore.value ? <Sentinel /> : isLoading.value && entries.value.length === 0 ? <Loading /> : null}
      </div>
      {placing.value !== null && (
        <PlaceDialog
          chat={placing.value}
          onClose={() => {
            placing.value = null;
          }}
        />
      )}
    </>
  );
}

function SearchBar() {
  const keys = keyNames("mod+k").join(isMac ? "" : " ");
  const items = (): MenuEntry[] => [
    {
      label: "All chats",
      checked: folder.value === "" && tag.value === "",
      onSelect: () => setFilter("", ""),
    },
    ...(folders.value.length > 0 ? ["Folders"] : []),
    ...folders.value.map(({ name, count }) => ({
      label: name,
      icon: Folder,
      hint: String(count),
      checked: folder.value === name,
      onSelect: () => setFilter(name, ""),
    })),
    ...(tags.value.length > 0 ? ["Tags"] : []),
    ...tags.value.map(({ name, count }) => ({
      label: name,
      icon: Tag,
      hint: String(count),
      checked: tag.value === name,
      onSelect: () => setFilter("", name),
    })),
  ];
  const hasFilters = folders.value.length > 0 || tags.value.length > 0;
  return (
    <>
      <search class="history-search">
        <div class="search-box">
          <Search size={16} />
          <input
            id={SEARCH_ID}
            type="search"
            aria-label="Search chats"
            placeholder="Search chats"
            dir="auto"
            autocomplete="off"
            value={search.value}
            onInput={(event) => setSearch(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key === "Escape" && !event.isComposing && search.value !== "") {
                setSearch("");
                event.preventDefault();
                event.stopPropagation();
              } else if (event.key === "ArrowDown") {
                document.querySelector<HTMLElement>(".chat-link")?.focus();
                event.preventDefault();
              }
            }}
          />
          {search.value === "" ? (
            <span class="search-keys" aria-hidden="true">
              {keys}
            </span>
          ) : (
            <IconButton icon={Close} size="s" label="Clear the search" onClick={() => setSearch("")} />
          )}
        </div>
        {hasFilters && <MenuButton label="Show a folder or tag" icon={Filter} items={items} align="end" />}
      </search>
      {(folder.value !== "" || tag.value !== "") && (
        <div class="history-filter">
          <span class="badge accent">
            {folder.value !== "" ? <Folder size={13} /> : <Tag size={13} />}
            <span class="truncate" dir="auto">
              {folder.value || tag.value}
            </span>
          </span>
          <Button size="s" kind="quiet" onClick={() => setFilter("", "")}>
            Show all
          </Button>
        </div>
      )}
    </>
  );
}

/** Asks for more chats as soon as the end of the list comes into view. */
function Sentinel() {
  const element = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (element.current === null) return;
    const watcher = new IntersectionObserver(
      (seen) => {
        if (seen.some((each) => each.isIntersecting)) void loadMore();
      },
      { rootMargin: "400px" },
    );
    watcher.observe(element.current);
    return () => watcher.disconnect();
    // The observer tells of changes only: after a page that did not fill the list it has to begin anew.
  }, [entries.value.length]);
  return (
    <div ref={element}>
      <Loading />
    </div>
  );
}

const Loading = () => (
  <div class="history-loading faint">
    <Spinner size={16} />
    <span class="visually-hidden">Loading chats</span>
  </div>
);

function moveInList(event: KeyboardEvent & { currentTarget: HTMLElement }): void {
  if (!(event.target instanceof HTMLElement) || !event.target.matches(".chat-link")) return;
  const all = [...event.currentTarget.querySelectorAll<HTMLElement>(".chat-link")];
  const at = all.indexOf(event.target);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  if (to < 0) document.getElementById(SEARCH_ID)?.focus();
  else all[to]?.focus();
}
