import { useSignal } from "@preact/signals";
import type { Call, Message } from "../api/types";
import { CodeBlock } from "../markdown/code";
import { Button } from "../ui/button";
import { TextField } from "../ui/fields";
import { Send, Tool } from "../ui/icons";
import { toastError } from "../ui/toast";
import type { Conversation } from "./conversation";

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
