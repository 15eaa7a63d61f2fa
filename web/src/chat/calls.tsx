import { useSignal } from "@preact/signals";
import type { Call, Message } from "../api/types";
import { CodeBlock } from "../markdown/code";
import { Button } from "../ui/button";
import { TextField } from "../ui/fields";
import { Check, Play, Send, Tool } from "../ui/icons";
import { Badge, Notice } from "../ui/notice";
import { Spinner } from "../ui/progress";
import { toastError } from "../ui/toast";
import { type Conversation, MOST_ROUNDS } from "./conversation";
import { type CallState, type Decision, pathOfTool } from "./tool_work";

/** The calls of an answer with their arguments. */
export function Calls({ calls }: { calls: readonly Call[] }) {
  return (
    <div class="calls">
      {calls.map((call, index) => (
        <section key={call.id || index} class="call" aria-label={`Call of ${call.name}`}>
          <p class="call-name">
            <Tool size={15} />
            <span class="truncate" dir="auto">
              {call.name}
            </span>
          </p>
          <CodeBlock text={pretty(call.arguments)} info="json" />
        </section>
      ))}
    </div>
  );
}

/** The calls that the server makes: what each would do, a question, and how far it is. */
export function ServerCalls({ chat, message }: { chat: Conversation; message: Message }) {
  const work = chat.work.value;
  if (work === null || work.message.id !== message.id) {
    return (
      <>
        <Calls calls={message.calls} />
        <Notice
          actions={
            <Button
              size="s"
              icon={Play}
              disabled={chat.isAnswering.value}
              onClick={() => void chat.runTools(message)}
            >
              {message.calls.length === 1 ? "Run the tool" : "Run the tools"}
            </Button>
          }
        >
          {chat.hasCalledOften(message)
            ? `The model has called tools ${MOST_ROUNDS} times in a row.`
            : "The model waits for what its tools return."}
        </Notice>
      </>
    );
  }
  return (
    <div class="calls">
      {work.calls.value.map((state, index) => (
        <ServerCall key={state.call.id || index} {...state} onDecide={(how) => work.decide(how)} />
      ))}
    </div>
  );
}

function ServerCall(props: CallState & { onDecide: (decision: Decision) => void }) {
  const { call, tool, state, onDecide } = props;
  const path = tool === null ? call.name : pathOfTool(tool);
  return (
    <section class="call" aria-label={`Call of ${path}`} aria-busy={state === "running" || undefined}>
      <p class="call-name">
        <Tool size={15} />
        <span class="truncate" dir="auto">
          {path}
        </span>
        {state === "running" && (
          <Badge>
            <Spinner size={12} /> Running
          </Badge>
        )}
        {state === "done" && <Badge>Done</Badge>}
      </p>
      <CodeBlock text={pretty(call.arguments)} info="json" />
      {state === "asking" && (
        // biome-ignore lint/a11y/useSemanticElements: a fieldset is for fields
        <div class="call-question" role="group" aria-label={`Allow ${path}?`}>
          <span class="grow">This runs on the server’s machine. Allow it?</span>
          <Button size="s" kind="primary" icon={Check} onClick={() => onDecide("once")}>
            Allow once
          </Button>
          <Button
            size="s"
            data-tip={`Call ${path} without asking until this page is closed`}
            onClick={() => onDecide("always")}
          >
            Always
          </Button>
          <Button size="s" kind="danger" onClick={() => onDecide("deny")}>
            Deny
          </Button>
        </div>
      )}
    </section>
  );
}

/** Return JSON on several lines if it is complete, else as it is. */
export function pretty(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

/** Takes the results of calls, which go back to the model. */
export function ResultsForm({ chat, message }: { chat: Conversation; message: Message }) {
  const results = useSignal<string[]>(message.calls.map(() => ""));
  const isBusy = useSignal(false);
  const send = async (event: Event) => {
    event.preventDefault();
    isBusy.value = true;
    try {
      await chat.sendResults(message, results.value);
    } catch (error) {
      toastError(error, "The results were not sent");
    } finally {
      isBusy.value = false;
    }
  };
  return (
    <form class="results" onSubmit={(event) => void send(event)}>
      {message.calls.map((call, index) => (
        <TextField
          key={call.id || index}
          label={
            message.calls.length === 1 ? `Result of ${call.name}` : `Result of ${call.name} (${index + 1})`
          }
          rows={2}
          mono
          placeholder="What the tool returns: text or JSON"
          value={results.value[index] ?? ""}
          onInput={(value) => {
            results.value = results.value.map((each, at) => (at === index ? value : each));
          }}
        />
      ))}
      <div>
        <Button type="submit" icon={Send} busy={isBusy.value} disabled={chat.isAnswering.value}>
          {message.calls.length === 1 ? "Send the result" : "Send the results"}
        </Button>
      </div>
    </form>
  );
}
