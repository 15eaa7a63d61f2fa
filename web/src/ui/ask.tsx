import { signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { Button } from "./button";
import { Dialog } from "./dialog";
import { TextField } from "./fields";

interface Question {
  title: string;
  body?: ComponentChildren;
  /** What the button that goes on says. */
  action: string;
  danger?: boolean;
}

interface TextQuestion extends Question {
  label: string;
  value?: string;
  suggestions?: string[];
  /** Returns what is wrong with the text, or null. */
  check?: (value: string) => string | null;
}

type Open =
  | { kind: "confirm"; question: Question; answer: (yes: boolean) => void }
  | { kind: "text"; question: TextQuestion; answer: (text: string | null) => void };

const open = signal<Open | null>(null);

/** Ask whether to go on. */
export function confirm(question: Question): Promise<boolean> {
  return new Promise((resolve) => {
    open.value = {
      kind: "confirm",
      question,
      answer: (yes) => {
        open.value = null;
        resolve(yes);
      },
    };
  });
}

/** Ask for a line of text; null if nothing was to be changed. */
export function askText(question: TextQuestion): Promise<string | null> {
  return new Promise((resolve) => {
    open.value = {
      kind: "text",
      question,
      answer: (text) => {
        open.value = null;
        resolve(text);
      },
    };
  });
}

/** Shows the questions of `confirm` and `askText`; there is one of it. */
export function AskHost() {
  const now = open.value;
  if (now === null) return null;
  return now.kind === "confirm" ? <Confirm {...now} /> : <AskText {...now} />;
}

function Confirm({ question, answer }: Extract<Open, { kind: "confirm" }>) {
  return (
    <Dialog
      title={question.title}
      size="s"
      onClose={() => answer(false)}
      actions={
        <>
          <Button onClick={() => answer(false)} data-autofocus={question.danger ? "" : undefined}>
            Cancel
          </Button>
          <Button
            kind={question.danger ? "danger" : "primary"}
            data-autofocus={question.danger ? undefined : ""}
            onClick={() => answer(true)}
          >
            {question.action}
          </Button>
        </>
      }
    >
      {question.body}
    </Dialog>
  );
}

function AskText({ question, answer }: Extract<Open, { kind: "text" }>) {
  const text = useSignal(question.value ?? "");
  const problem = question.check?.(text.value) ?? null;
  return (
    <Dialog
      title={question.title}
      size="s"
      onClose={() => answer(null)}
      actions={
        <>
          <Button onClick={() => answer(null)}>Cancel</Button>
          <Button kind="primary" disabled={problem !== null} type="submit" form="ask-text">
            {question.action}
          </Button>
        </>
      }
    >
      <form
        id="ask-text"
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          if (problem === null) answer(text.value);
        }}
      >
        {question.body}
        <TextField
          label={question.label}
          value={text.value}
          suggestions={question.suggestions}
          error={text.value === (question.value ?? "") ? null : problem}
          onInput={(value) => {
            text.value = value;
          }}
          autofocus
          selected
        />
      </form>
    </Dialog>
  );
}
