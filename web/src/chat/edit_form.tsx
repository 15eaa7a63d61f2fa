import { useSignal } from "@preact/signals";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { messageOf } from "../api/client";
import type { Message } from "../api/types";
import { enterSends } from "../state/preferences";
import { Button } from "../ui/button";
import { AttachmentList } from "./attachment_list";
import { Attachments } from "./attachments";
import type { Conversation } from "./conversation";
import { fitHeight } from "./text_area";

/** Writes another version of a message, which becomes a branch beside it. */
export function EditForm(props: { chat: Conversation; message: Message; onClose: () => void }) {
  const { chat, message, onClose } = props;
  const text = useSignal(message.content);
  const problem = useSignal<string | null>(null);
  const isBusy = useSignal(false);
  const area = useRef<HTMLTextAreaElement>(null);
  const attachments = useMemo(() => {
    const made = new Attachments();
    made.set(message.files);
    return made;
  }, []);
  const asks = message.role !== "assistant";

  // Not some frames later: somebody may have typed by then.
  useLayoutEffect(() => {
    const element = area.current;
    if (element === null) return;
    fitHeight(element);
    element.focus();
    element.setSelectionRange(element.value.length, element.value.length);
  }, []);

  const save = async () => {
    isBusy.value = true;
    problem.value = null;
    try {
      await chat.edit(message, text.value, attachments.files);
      onClose();
    } catch (error) {
      problem.value = messageOf(error);
      isBusy.value = false;
    }
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.isComposing || event.keyCode === 229) return;
    if (event.key === "Escape") onClose();
    else if (
      event.key === "Enter" &&
      (event.ctrlKey || event.metaKey || (asks && enterSends.value && !event.shiftKey))
    ) {
      void save();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  };

  return (
    <div class="edit-form">
      <AttachmentList attachments={attachments} />
      <textarea
        ref={area}
        class="input"
        dir="auto"
        aria-label="Text of the message"
        value={text.value}
        onInput={(event) => {
          text.value = event.currentTarget.value;
          fitHeight(event.currentTarget);
        }}
        onKeyDown={onKeyDown}
      />
      {problem.value !== null && (
        <p class="field-error" role="alert">
          {problem.value}
        </p>
      )}
      <div class="row wrap">
        <span class="faint small grow">
          {asks ? "The old version stays, as another branch." : "The old answer stays, as another branch."}
        </span>
        <Button size="s" onClick={onClose}>
          Cancel
        </Button>
        <Button size="s" kind="primary" busy={isBusy.value} onClick={() => void save()}>
          {asks ? "Send" : "Save"}
        </Button>
      </div>
    </div>
  );
}
