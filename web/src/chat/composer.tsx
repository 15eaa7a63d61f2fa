import { signal, useSignal, useSignalEffect } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { messageOf } from "../api/client";
import { enterSends } from "../state/preferences";
import { me } from "../state/session";
import { isMac } from "../state/shortcuts";
import { Button, IconButton } from "../ui/button";
import { Attach, Bulb, Send, Stop, Tool } from "../ui/icons";
import { MenuButton } from "../ui/menu";
import { Notice } from "../ui/notice";
import { chooseFiles } from "../ui/save_file";
import { toast, toastError } from "../ui/toast";
import { AttachmentList } from "./attachment_list";
import { Attachments } from "./attachments";
import { ContextBar } from "./context_bar";
import type { Conversation } from "./conversation";
import { readDraft, writeDraft } from "./drafts";
import { LONGEST_PASTE } from "./file_kinds";
import { has, modelNamed, shortName } from "./models";
import { RecordButton } from "./record_button";
import { isPicture, isRecording } from "./request";
import { fitHeight } from "./text_area";
import { forgetOffers, loadToolServers, offersOf, toolServers } from "./tool_servers";

const AREA_ID = "composer-text";

/** Raised to put a text into the composer that is shown. */
const given = signal<{ text: string } | null>(null);

export function setDraft(text: string): void {
  given.value = { text };
}

export function focusComposer(): void {
  requestAnimationFrame(() => document.getElementById(AREA_ID)?.focus());
}

/** Writes the next message. What was typed stays until the server has it. */
export function Composer({ chat }: { chat: Conversation }) {
  const start = useMemo(() => readDraft(chat.id.peek()), []);
  const text = useSignal(start.text);
  const problem = useSignal<string | null>(null);
  const isSending = useSignal(false);
  const isOver = useSignal(0);
  const area = useRef<HTMLTextAreaElement>(null);
  const attachments = useMemo(() => {
    const made = new Attachments();
    made.set(start.files);
    return made;
  }, []);
  const files = attachments.list.value;
  const model = chat.model.value;
  const isBusy = chat.isAnswering.value;
  const isEmpty = text.value.trim() === "" && files.length === 0;
  const seesPictures = has(model, "vision");
  const hears = modelNamed(model)?.capabilities?.includes("audio") ?? false;
  const hasRecordings = files.some((each) => each.file !== null && isRecording(each.file));
  const hasPictures = files.some((each) => each.file !== null && isPicture(each.file));

  useLayoutEffect(() => {
    const element = area.current;
    if (element !== null) {
      fitHeight(element);
      // Somebody who writes elsewhere, such as a title, goes on there.
      const writes = document.activeElement?.matches("input, textarea") ?? false;
      if (!writes && matchMedia("(pointer: fine)").matches) element.focus({ preventScroll: true });
    }
  }, []);

  useSignalEffect(() => {
    const list = attachments.list.value;
    const ready = list.flatMap((each) => (each.file === null ? [] : [each.file]));
    writeDraft(chat.id.peek(), { text: text.value, files: ready });
  });

  const put = (value: string) => {
    text.value = value;
    const element = area.current;
    if (element === null) return;
    element.value = value;
    fitHeight(element);
  };
  useEffect(() => {
    const next = given.value;
    if (next === null) return;
    given.value = null;
    put(next.text);
    area.current?.focus();
  }, [given.value]);

  const send = async () => {
    if (isEmpty || isBusy || isSending.value) return;
    if (!attachments.isReady) {
      problem.value = files.some((each) => each.state === "failed")
        ? "Remove the files that cannot be attached first."
        : "Some files are still being read.";
      return;
    }
    const [content, sent] = [text.value, attachments.files];
    const before = chat.id.peek();
    isSending.value = true;
    problem.value = null;
    try {
      await chat.send(content, sent);
      if (text.value === content) put("");
      attachments.clear();
      writeDraft(before, { text: "", files: [] });
      writeDraft(chat.id.peek(), { text: "", files: [] });
    } catch (error) {
      problem.value = `Not sent: ${messageOf(error)}`;
    } finally {
      isSending.value = false;
      area.current?.focus({ preventScroll: true });
    }
  };

  const onKeyDown = (event: KeyboardEvent) => {
    // Enter chooses what an input method proposes; it sends nothing then.
    if (event.isComposing || event.keyCode === 229) return;
    if (event.key === "ArrowUp" && isEmpty && editLast()) event.preventDefault();
    if (event.key !== "Enter") return;
    const withMod = isMac ? event.metaKey : event.ctrlKey;
    if (withMod || (enterSends.value && !event.shiftKey && !event.altKey)) {
      event.preventDefault();
      void send();
    }
  };

  const onPaste = (event: ClipboardEvent) => {
    const data = event.clipboardData;
    if (data === null) return;
    const pasted = [...data.files];
    const words = data.getData("text/plain");
    // Spreadsheets and word processors put a picture of what is copied beside its text.
    if (pasted.length > 0 && words === "") {
      event.preventDefault();
      void attachments.add(pasted.map(named));
    } else if (words.length > LONGEST_PASTE) {
      event.preventDefault();
      void attachments.add([new File([words], "Pasted text.txt", { type: "text/plain" })]);
    }
  };

  const holdsFiles = (event: DragEvent) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const onDrop = (event: DragEvent) => {
    isOver.value = 0;
    if (!holdsFiles(event)) return;
    event.preventDefault();
    void attachments.add([...(event.dataTransfer?.files ?? [])]);
    area.current?.focus();
  };
  useLayoutEffect(() => {
    // Files may be dropped anywhere on the view.
    const view = document.getElementById("main");
    if (view === null) return;
    const over = (event: DragEvent) => {
      if (holdsFiles(event)) event.preventDefault();
    };
    const enter = (event: DragEvent) => {
      if (holdsFiles(event)) isOver.value += 1;
    };
    const leave = (event: DragEvent) => {
      if (holdsFiles(event)) isOver.value = Math.max(0, isOver.value - 1);
    };
    view.addEventListener("dragover", over);
    view.addEventListener("dragenter", enter);
    view.addEventListener("dragleave", leave);
    view.addEventListener("drop", onDrop);
    return () => {
      view.removeEventListener("dragover", over);
      view.removeEventListener("dragenter", enter);
      view.removeEventListener("dragleave", leave);
      view.removeEventListener("drop", onDrop);
    };
  }, []);

  return (
    <div class="composer-place">
      {isOver.value > 0 && (
        <div class="drop-place" aria-hidden="true">
          Drop pictures, {hears && "recordings, "}PDF files, text or source code
        </div>
      )}
      {problem.value !== null && <Notice kind="error">{problem.value}</Notice>}
      {hasPictures && !seesPictures && (
        <Notice kind="warning">{shortName(model)} does not see pictures. Choose a model that does.</Notice>
      )}
      {hasRecordings && !has(model, "audio") && (
        <Notice kind="warning">{shortName(model)} does not hear recordings. Choose a model that does.</Notice>
      )}
      <form
        class="composer"
        aria-label="New message"
        onSubmit={(event) => {
          event.preventDefault();
          void send();
        }}
      >
        <AttachmentList attachments={attachments} seesPictures={seesPictures} />
        <textarea
          ref={area}
          id={AREA_ID}
          rows={1}
          dir="auto"
          placeholder={model === "" ? "Write a message" : `Message ${shortName(model)}`}
          aria-label="Message"
          aria-describedby="composer-hint"
          value={text.value}
          onInput={(event) => {
            text.value = event.currentTarget.value;
            fitHeight(event.currentTarget);
          }}
          onKeyDown={onKeyDown}
          onPaste={onPaste}
        />
        <div class="composer-row">
          <IconButton
            icon={Attach}
            label={`Attach pictures, ${hears ? "recordings, " : ""}PDF files or text`}
            onClick={async () => {
              const chosen = await chooseFiles({ multiple: true });
              await attachments.add(chosen);
              area.current?.focus();
            }}
          />
          {hears && (
            <RecordButton
              onFile={(file) => {
                void attachments.add([file]);
                area.current?.focus();
              }}
            />
          )}
          <ThinkMenu chat={chat} />
          {me.value?.mcp && <ToolMenu chat={chat} />}
          <span class="grow" />
          <ContextBar chat={chat} />
          {isBusy ? (
            <Button
              class="round"
              kind="primary"
              aria-label="Stop the answer"
              data-tip="Stop"
              data-keys="escape"
              disabled={chat.runs.value.length === 0 && chat.work.value === null}
              onClick={() => void chat.stop()}
            >
              <Stop size={18} />
            </Button>
          ) : (
            <Button
              class="round"
              kind="primary"
              type="submit"
              aria-label="Send"
              data-tip="Send"
              data-keys={enterSends.value ? "enter" : "mod+enter"}
              disabled={isEmpty || isSending.value}
            >
              <Send size={18} />
            </Button>
          )}
        </div>
      </form>
      <p id="composer-hint" class="visually-hidden">
        {enterSends.value ? "Enter sends, Shift and Enter begin a new line." : "Control and Enter send."}
      </p>
    </div>
  );
}

/** Edit the last question of the branch that is shown; false if there is none. */
function editLast(): boolean {
  const button = [...document.querySelectorAll<HTMLElement>(".message.user [aria-label='Edit']")].at(-1);
  button?.click();
  return button !== undefined;
}

/** A picture from the clipboard has no name of its own. */
const named = (file: File) =>
  /^image\.\w+$/.test(file.name)
    ? new File([file], `Pasted picture.${file.name.split(".").at(-1)}`, { type: file.type })
    : file;

const LEVELS: { value: boolean | "low" | "medium" | "high" | undefined; label: string }[] = [
  { value: undefined, label: "As the model does" },
  { value: false, label: "Off" },
  { value: true, label: "On" },
  { value: "low", label: "Little" },
  { value: "medium", label: "Some" },
  { value: "high", label: "Much" },
];

/** Whether and how much the model thinks, for models that can. */
function ThinkMenu({ chat }: { chat: Conversation }) {
  const abilities = modelNamed(chat.model.value)?.capabilities ?? [];
  const { think } = chat.settings.value;
  if (!abilities.includes("thinking") && think === undefined) return null;
  const now = LEVELS.find((level) => level.value === think);
  return (
    <MenuButton
      class={think === undefined ? undefined : "is-on"}
      label={`Thinking: ${now?.label ?? ""}`}
      side="above"
      items={[
        "Thinking",
        ...LEVELS.map(({ value, label }) => ({
          label,
          checked: think === value,
          onSelect: () => chat.change({ think: value }),
        })),
      ]}
    >
      <Bulb size={17} />
      <span class="small">{think === undefined ? "Thinking" : now?.label}</span>
    </MenuButton>
  );
}

/** The MCP servers whose tools the model is offered; none unless somebody chooses it. */
function ToolMenu({ chat }: { chat: Conversation }) {
  useEffect(() => {
    loadToolServers().catch((error: unknown) => toastError(error, "The tool servers are not known"));
  }, []);
  const chosen = chat.settings.value.mcp;
  const names = [...new Set([...(toolServers.value ?? []).map(({ name }) => name), ...chosen])];
  const toggle = async (name: string) => {
    const others = chosen.filter((each) => each !== name);
    const next = chosen.includes(name) ? others : [...others, name];
    chat.change({ mcp: next });
    if (next.length <= others.length) return;
    forgetOffers();
    try {
      const { warnings } = await offersOf(next);
      for (const warning of warnings) toast({ kind: "warning", text: warning, seconds: 10 });
    } catch (error) {
      chat.change({ mcp: chat.settings.peek().mcp.filter((each) => each !== name) });
      toastError(error, `The tools of ${name} cannot be offered`);
    }
  };
  return (
    <MenuButton
      class={chosen.length === 0 ? undefined : "is-on"}
      label={chosen.length === 0 ? "Tools: none" : `Tools: ${chosen.join(", ")}`}
      side="above"
      items={[
        "Tools of",
        ...(names.length === 0
          ? [{ label: "No servers are configured", disabled: true, onSelect: () => {} }]
          : names.map((name) => ({
              label: name,
              hint: toolServers.value?.find((each) => each.name === name)?.place,
              checked: chosen.includes(name),
              onSelect: () => void toggle(name),
            }))),
      ]}
    >
      <Tool size={17} />
      <span class="small">{chosen.length === 0 ? "Tools" : chosen.join(", ")}</span>
    </MenuButton>
  );
}
