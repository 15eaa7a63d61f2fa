import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Message } from "../api/types";
import { Markdown } from "../markdown/markdown";
import { now } from "../state/clock";
import { Button, IconButton } from "../ui/button";
import { classes } from "../ui/classes";
import { copyText } from "../ui/copy_text";
import { ago, dateTime } from "../ui/format";
import { Check, ChevronLeft, ChevronRight, Columns, Copy, Edit, Play, Refresh, Tool } from "../ui/icons";
import { Notice } from "../ui/notice";
import { Progress } from "../ui/progress";
import { toastError } from "../ui/toast";
import type { ActiveRun } from "./active_run";
import { Calls, ResultsForm, ServerCalls } from "./calls";
import { type Conversation, looksInside } from "./conversation";
import { EditForm } from "./edit_form";
import { Files } from "./files";
import { Inside } from "./inside";
import { shortName } from "./models";
import type { Answer as RunAnswer } from "./run";
import { Stats, warningsOf } from "./stats";
import { Thinking } from "./thinking";
import { siblingsOf } from "./tree";

export interface MessageProps {
  chat: Conversation;
  message: Message;
  isLast: boolean;
}

const NAMES = { user: "You", system: "System", tool: "Tool", assistant: "Answer" };

/** A message of the branch that is shown, or all the answers beside it. */
export function MessageView({ chat, message, isLast }: MessageProps) {
  const { parent, role } = message;
  if (role === "assistant" && parent !== null && chat.settings.value.sideBySide.includes(parent)) {
    const tree = chat.tree.value;
    const answers = siblingsOf(tree, message.id)
      .map((id) => tree.byId.get(id)!)
      .filter((each) => each.role === "assistant");
    if (answers.length > 1)
      return <SideBySide chat={chat} chosen={message} answers={answers} isLast={isLast} />;
  }
  return <One chat={chat} message={message} isLast={isLast} />;
}

function SideBySide(props: { chat: Conversation; chosen: Message; answers: Message[]; isLast: boolean }) {
  const { chat, chosen, answers, isLast } = props;
  return (
    <section class="beside" aria-label={`${answers.length} answers`}>
      <div class="beside-head">
        <span class="faint small grow">
          {answers.length} answers side by side. The chat goes on from the chosen one.
        </span>
        <Button size="s" kind="quiet" onClick={() => chat.setSideBySide(chosen.parent!, false)}>
          Show the chosen one alone
        </Button>
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it is scrolled by the keyboard */}
      <section class="beside-answers" tabIndex={0} aria-label="Answers side by side">
        {answers.map((answer, index) => (
          <div key={answer.id} class={classes("beside-answer", answer.id === chosen.id && "chosen")}>
            <div class="beside-answer-head">
              <span class="grow truncate" dir="auto">
                {index + 1}. {shortName(answer.model)}
              </span>
              <Button
                size="s"
                kind="quiet"
                icon={answer.id === chosen.id ? Check : undefined}
                pressed={answer.id === chosen.id}
                onClick={() => chat.showMessage(answer.id)}
              >
                {answer.id === chosen.id ? "Chosen" : "Choose"}
              </Button>
            </div>
            <One chat={chat} message={answer} isLast={isLast && answer.id === chosen.id} isBeside />
          </div>
        ))}
      </section>
    </section>
  );
}

function One({ chat, message, isLast, isBeside = false }: MessageProps & { isBeside?: boolean }) {
  const edits = useSignal(false);
  const found = chat.runOf(message.id);
  const { role } = message;
  const time = message.created > 0 ? `${dateTime(message.created)}, ${ago(message.created, now.value)}` : "";
  const name = role === "assistant" ? shortName(message.model) || NAMES.assistant : NAMES[role];
  return (
    <article
      class={classes("message", role, found !== null && "running", isLast && "last")}
      aria-label={name}
      aria-busy={found !== null || undefined}
      data-message={message.id}
    >
      {role !== "user" && !isBeside && (
        <header class="message-head" data-tip={time || undefined}>
          {role === "tool" && <Tool size={15} />}
          <span class="truncate" dir="auto">
            {role === "tool" ? message.tool_name || "Tool" : name}
          </span>
        </header>
      )}
      {edits.value ? (
        <EditForm
          chat={chat}
          message={message}
          onClose={() => {
            edits.value = false;
          }}
        />
      ) : role === "assistant" ? (
        <Answer chat={chat} message={message} found={found} isLast={isLast} />
      ) : (
        <Written message={message} />
      )}
      {!edits.value && (
        <Actions
          chat={chat}
          message={message}
          isRunning={found !== null}
          isBeside={isBeside}
          onEdit={() => {
            edits.value = true;
          }}
        />
      )}
    </article>
  );
}

const LONG = 4000;

/** A message that a person wrote, or a result: text as it is. */
function Written({ message }: { message: Message }) {
  const showsAll = useSignal(false);
  const { content } = message;
  const isLong = content.length > LONG + 500;
  const text = isLong && !showsAll.value ? content.slice(0, LONG) : content;
  return (
    <>
      {message.files.length > 0 && <Files files={message.files} />}
      {content !== "" && (
        <div class="written" dir="auto">
          {text}
          {isLong && (
            <Button
              size="s"
              kind="quiet"
              class="show-all"
              aria-expanded={showsAll.value}
              onClick={() => {
                showsAll.value = !showsAll.value;
              }}
            >
              {showsAll.value ? "Show less" : `… Show all ${content.length.toLocaleString("en")} characters`}
            </Button>
          )}
        </div>
      )}
    </>
  );
}

interface AnswerProps {
  chat: Conversation;
  message: Message;
  /** The run that writes it, and which of its answers it is; null once it is complete. */
  found: { run: ActiveRun; sample: number } | null;
  isLast: boolean;
}

/** An answer, under way or complete. Its text stays drawn when it ends. */
function Answer({ chat, message, found, isLast }: AnswerProps) {
  const answer = found?.run.state.value.answers[found.sample];
  const shown: Message =
    answer === undefined
      ? message
      : { ...message, content: answer.text, thinking: answer.thinking, calls: answer.calls.map(callOf) };
  const inside = looksInside.value ? chat.insideOf(message.id) : null;
  return (
    <>
      {shown.thinking !== "" || (answer?.thoughtFrom ?? null) !== null ? (
        <Thinking
          text={shown.thinking}
          isGrowing={answer !== undefined && answer.thoughtTo === null && answer.done === null}
          seconds={answer === undefined ? chat.thoughtSeconds(message) : thoughtSoFar(answer)}
        />
      ) : null}
      {inside !== null ? (
        <Inside chat={chat} message={shown} inside={inside} />
      ) : shown.content !== "" ? (
        <Markdown text={shown.content} growing={answer !== undefined && answer.done === null} />
      ) : null}
      {found !== null ? (
        answer !== undefined && <BelowGrowing run={found.run} answer={answer} />
      ) : (
        <BelowFinished chat={chat} message={message} isLast={isLast} />
      )}
    </>
  );
}

const callOf = (call: RunAnswer["calls"][number]) => ({
  id: call.id ?? "",
  name: call.name ?? "",
  arguments: call.arguments ?? "",
});

const thoughtSoFar = ({ thoughtFrom, thoughtTo }: RunAnswer): number | null =>
  thoughtFrom !== null && thoughtTo !== null ? thoughtTo - thoughtFrom : null;

/** What stands below the text of an answer under way. */
function BelowGrowing({ run, answer }: { run: ActiveRun; answer: RunAnswer }) {
  const hasNothing = answer.text === "" && answer.thinking === "" && answer.calls.length === 0;
  return (
    <>
      {answer.calls.length > 0 && <Calls calls={answer.calls.map(callOf)} />}
      {hasNothing && <ProgressOf run={run} />}
      {run.attempt.value > 0 && (
        <p class="faint small" role="status">
          The connection broke. Trying again; the answer goes on meanwhile.
        </p>
      )}
      {answer.done !== null && <Stats stats={answer.done.stats} />}
    </>
  );
}

/** What is done before the answer begins. */
function ProgressOf({ run }: { run: ActiveRun }) {
  const { load, prompt } = run.state.value;
  if (load !== null) {
    const share = load.total > 0 ? load.done / load.total : null;
    return (
      <div class="run-progress">
        <span>
          Loading {shortName(run.model)}
          {share !== null && `, ${Math.floor(share * 100)} %`}
        </span>
        <Progress thin label={`Loading ${shortName(run.model)}`} value={share} />
      </div>
    );
  }
  if (prompt !== null && prompt.done < prompt.total) {
    const { done, total, cached } = prompt;
    return (
      <div class="run-progress">
        <span class="numbers">
          Reading the prompt, {done.toLocaleString("en")} of {total.toLocaleString("en")} tokens
          {cached > 0 && ` (${cached.toLocaleString("en")} from the cache)`}
        </span>
        <Progress thin label="Reading the prompt" value={total > 0 ? done / total : null} />
      </div>
    );
  }
  return <Dots />;
}

const Dots = () => (
  <div class="dots">
    <span />
    <span />
    <span />
    <span class="visually-hidden">Waiting for the answer</span>
  </div>
);

/** The place of an answer that has been asked for. */
export function Waiting({ model }: { model: string }) {
  return (
    <div class="message assistant waiting">
      <header class="message-head">
        <span class="truncate">{shortName(model)}</span>
      </header>
      <Dots />
    </div>
  );
}

/** What stands below the text of a complete answer. */
function BelowFinished(props: { chat: Conversation; message: Message; isLast: boolean }) {
  const { chat, message, isLast } = props;
  const { stats } = message;
  const inside = looksInside.value ? chat.insideOf(message.id) : null;
  const isEmpty = message.content === "" && message.thinking === "" && message.calls.length === 0;
  const isCut = message.state === "stopped" || message.state === "failed" || stats?.reason === "length";
  const needsResults =
    message.calls.length > 0 &&
    isLast &&
    message.state !== "running" &&
    (chat.tree.value.below.get(message.id)?.length ?? 0) === 0;
  return (
    <>
      {looksInside.value && inside === null && !isEmpty && (
        <Notice
          actions={
            message.parent !== null && (
              <Button size="s" icon={Refresh} onClick={() => chat.regenerate(message)}>
                Answer again
              </Button>
            )
          }
        >
          The probabilities of this answer were not asked for, or another tab has them.
        </Notice>
      )}
      {needsResults && chat.isForServers(message) ? (
        <ServerCalls chat={chat} message={message} />
      ) : (
        message.calls.length > 0 && <Calls calls={message.calls} />
      )}
      {needsResults && !chat.isForServers(message) && <ResultsForm chat={chat} message={message} />}
      {message.state === "running" && <Dots />}
      {isEmpty && message.state === "done" && <p class="faint">The answer is empty.</p>}
      {message.error !== null && (
        <Notice
          kind="error"
          actions={
            message.parent !== null && (
              <>
                {!isEmpty && isLast && message.calls.length === 0 && (
                  <Button size="s" icon={Play} onClick={() => chat.continueAnswer(message)}>
                    Continue
                  </Button>
                )}
                <Button size="s" icon={Refresh} onClick={() => chat.regenerate(message)}>
                  Try again
                </Button>
              </>
            )
          }
        >
          {message.error}
        </Notice>
      )}
      {warningsOf(stats).map((warning) => (
        <Notice key={warning} kind="warning">
          {warning}
        </Notice>
      ))}
      {isCut && message.error === null && isLast && message.calls.length === 0 && (
        <div class="row wrap cut">
          <span class="faint small">
            {message.state === "stopped"
              ? "Stopped."
              : `Cut after ${(stats?.tokens ?? 0).toLocaleString("en")} tokens, at the longest answer or the end of the context.`}
          </span>
          {message.parent !== null && !isEmpty && (
            <Button size="s" icon={Play} onClick={() => chat.continueAnswer(message)}>
              Continue
            </Button>
          )}
        </div>
      )}
      {stats !== null && <Stats stats={stats} />}
    </>
  );
}

interface ActionsProps {
  chat: Conversation;
  message: Message;
  isRunning: boolean;
  isBeside: boolean;
  onEdit: () => void;
}

function Actions({ chat, message, isRunning, isBeside, onEdit }: ActionsProps) {
  const { role, parent } = message;
  const isBusy = chat.isAnswering.value;
  const siblings = siblingsOf(chat.tree.value, message.id);
  const at = siblings.indexOf(message.id);
  const parts: ComponentChildren[] = [];
  if (siblings.length > 1 && !isBeside) {
    parts.push(
      // biome-ignore lint/a11y/useSemanticElements: a fieldset is for fields
      <span key="branches" class="branches" role="group" aria-label="Branches">
        <IconButton
          size="s"
          icon={ChevronLeft}
          label="The branch before"
          disabled={at === 0}
          onClick={() => chat.showBeside(message.id, -1)}
        />
        <span class="numbers branch-count">
          <span class="visually-hidden">Branch </span>
          {at + 1}/{siblings.length}
        </span>
        <IconButton
          size="s"
          icon={ChevronRight}
          label="The next branch"
          disabled={at === siblings.length - 1}
          onClick={() => chat.showBeside(message.id, 1)}
        />
      </span>,
    );
    if (role === "assistant" && parent !== null) {
      parts.push(
        <IconButton
          key="beside"
          size="s"
          icon={Columns}
          label="Show all answers side by side"
          onClick={() => chat.setSideBySide(parent, true)}
        />,
      );
    }
  }
  if (!isRunning) {
    parts.push(<CopyButton key="copy" text={message.content} />);
    if (role === "assistant" && parent !== null) {
      parts.push(
        <IconButton
          key="again"
          size="s"
          icon={Refresh}
          label="Answer again"
          disabled={isBusy}
          onClick={() => chat.regenerate(message)}
        />,
        <IconButton
          key="continue"
          size="s"
          icon={Play}
          label="Continue the answer"
          disabled={isBusy || message.calls.length > 0}
          onClick={() => chat.continueAnswer(message)}
        />,
      );
    }
    parts.push(
      <IconButton key="edit" size="s" icon={Edit} label="Edit" disabled={isBusy} onClick={onEdit} />,
    );
  }
  if (parts.length === 0) return null;
  return (
    // biome-ignore lint/a11y/useSemanticElements: a fieldset is for fields
    <div class="message-actions" role="group" aria-label="Actions for the message">
      {parts}
    </div>
  );
}

function CopyButton({ text }: { text: string }) {
  const copied = useSignal(false);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  const copy = async () => {
    try {
      await copyText(text);
      copied.value = true;
      timer.current = setTimeout(() => {
        copied.value = false;
      }, 1600);
    } catch (error) {
      toastError(error, "The message was not copied");
    }
  };
  return (
    <IconButton
      size="s"
      icon={copied.value ? Check : Copy}
      label={copied.value ? "Copied" : "Copy"}
      onClick={() => void copy()}
    />
  );
}
