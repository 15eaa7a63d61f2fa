import { useSignal, useSignalEffect } from "@preact/signals";
import { useLayoutEffect } from "preact/hooks";
import { ApiError, messageOf } from "../api/client";
import { entries, onOtherTabs } from "../history/chat_list";
import { isNarrow } from "../shell/layout";
import { lazy } from "../shell/lazy";
import { TopBar } from "../shell/top_bar";
import { navigate, route } from "../state/router";
import { useShortcut } from "../state/shortcuts";
import { Button, IconButton } from "../ui/button";
import { Dialog } from "../ui/dialog";
import { Empty } from "../ui/empty";
import { Chat as ChatIcon, Code, Eye, Offline, Sliders } from "../ui/icons";
import { Spinner } from "../ui/progress";
import { countChanges } from "./chat_settings";
import { Composer, focusComposer } from "./composer";
import { type Conversation, looksInside } from "./conversation";
import { beginAnew, conversation, forget } from "./conversations";
import { MessageList } from "./message_list";
import { CompareMenu, ModelMenu } from "./model_menu";
import { loadModels } from "./models";
import { panelOpen } from "./preferences";
import { Welcome } from "./welcome";

const SettingsPanel = lazy(async () => (await import("./settings_panel")).SettingsPanel);
const CodeDialog = lazy(async () => (await import("./code_dialog")).CodeDialog);

export function ChatView({ id }: { id: string | null }) {
  const version = useSignal(0);
  void version.value;
  const chat = conversation(id);

  useLayoutEffect(() => {
    void loadModels();
    const onNew = () => {
      beginAnew();
      version.value += 1;
      focusComposer();
    };
    const refresh = () => {
      if (document.hidden) return;
      void loadModels();
      const { item } = route.peek();
      if (item !== null) void conversation(item).refresh();
    };
    document.addEventListener("puna:new-chat", onNew);
    document.addEventListener("visibilitychange", refresh);
    const end = onOtherTabs(refresh);
    return () => {
      document.removeEventListener("puna:new-chat", onNew);
      document.removeEventListener("visibilitychange", refresh);
      end();
    };
  }, []);

  const retry = () => {
    if (id !== null) forget(id);
    version.value += 1;
  };
  return <Shown key={chat.key} chat={chat} onRetry={retry} />;
}

function Shown({ chat, onRetry }: { chat: Conversation; onRetry: () => void }) {
  const showsCode = useSignal(false);
  const id = chat.id.value;
  // The list hears first of a new title.
  const head = entries.value.find((each) => each.id === id) ?? chat.head.value;
  const isEmpty = chat.tree.value.byId.size === 0;
  const changes = countChanges(chat.settings.value);

  // A chat gets its address with its first message.
  useSignalEffect(() => {
    const id = chat.id.value;
    if (id !== null && route.peek().view === "chat" && route.peek().item === null) {
      navigate("chat", id, { replace: true });
    }
  });

  const togglePanel = () => {
    panelOpen.value = !panelOpen.value;
  };
  const toggleInside = () => {
    looksInside.value = !looksInside.value;
  };
  useShortcut({ keys: "mod+,", label: "Settings of the chat", group: "Chat", run: togglePanel });
  useShortcut({ keys: "mod+i", label: "Look inside answers", group: "Chat", run: toggleInside });
  useShortcut({ keys: "/", label: "Write a message", group: "Chat", run: focusComposer });
  useShortcut(
    {
      keys: "escape",
      label: "Stop the answer",
      group: "Chat",
      whileTyping: true,
      run: () => void chat.stop(),
    },
    chat.runs.value.length > 0,
  );

  const error = chat.loadError.value;
  if (error !== null) return <Missing error={error} onRetry={onRetry} />;
  const panel = panelOpen.value ? <SettingsPanel chat={chat} /> : null;
  return (
    <>
      <TopBar
        title={head?.title || (chat.id.value === null ? "New chat" : "Chat")}
        actions={
          <>
            <CompareMenu chat={chat} />
            <IconButton
              icon={Eye}
              label="Look inside answers"
              shortcut="mod+i"
              pressed={looksInside.value}
              onClick={toggleInside}
            />
            <IconButton
              icon={Code}
              label="This chat as code"
              onClick={() => {
                showsCode.value = true;
              }}
            />
            <span class="with-count">
              <IconButton
                icon={Sliders}
                label="Settings of the chat"
                shortcut="mod+,"
                pressed={panelOpen.value}
                aria-expanded={panelOpen.value}
                onClick={togglePanel}
              />
              {changes > 0 && <span class="dot-count">{changes}</span>}
            </span>
          </>
        }
      >
        <ModelMenu chat={chat} />
      </TopBar>
      <div class="chat">
        <div class="chat-main">
          {chat.isLoading.value && isEmpty ? (
            <div class="hero-center faint grow" aria-busy="true">
              <Spinner />
              <span class="visually-hidden">Loading the chat</span>
            </div>
          ) : isEmpty ? (
            <Welcome chat={chat} />
          ) : (
            <MessageList chat={chat} />
          )}
          <Composer chat={chat} />
          <div class="visually-hidden" role="status">
            {chat.announcement.value}
          </div>
        </div>
        {panel !== null &&
          (isNarrow.value ? (
            <Dialog title="Settings of the chat" onClose={togglePanel} class="panel-dialog">
              {panel}
            </Dialog>
          ) : (
            <aside class="chat-panel" aria-label="Settings of the chat">
              {panel}
            </aside>
          ))}
      </div>
      {showsCode.value && (
        <CodeDialog
          chat={chat}
          onClose={() => {
            showsCode.value = false;
          }}
        />
      )}
    </>
  );
}

function Missing({ error, onRetry }: { error: unknown; onRetry: () => void }) {
  const isGone = error instanceof ApiError && error.isMissing;
  return (
    <>
      <TopBar title="Chat" />
      <Empty
        icon={isGone ? ChatIcon : Offline}
        title={isGone ? "This chat is not there" : "The chat could not be loaded"}
        actions={
          isGone ? (
            <Button kind="primary" onClick={() => navigate("chat")}>
              New chat
            </Button>
          ) : (
            <Button kind="primary" onClick={onRetry}>
              Try again
            </Button>
          )
        }
      >
        {isGone ? "It was deleted, or belongs to another key." : messageOf(error)}
      </Empty>
    </>
  );
}
