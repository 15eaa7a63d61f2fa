import { hashOf } from "../state/route";
import { Logo } from "../ui/icons";
import { setDraft } from "./composer";
import type { Conversation } from "./conversation";
import { has, modelNamed, models, modelsError, shortName } from "./models";

const IDEAS = [
  "Explain how a transformer predicts the next word.",
  "Write a Python function that finds prime numbers.",
  "Compare three ways to sort a list, in a table.",
];

/** What a chat shows before its first message. */
export function Welcome({ chat }: { chat: Conversation }) {
  const model = chat.model.value;
  const list = models.value;
  if (list !== null && list.length === 0) {
    return (
      <div class="welcome">
        <Logo size={44} />
        <h2>No model yet</h2>
        <p class="soft">
          Pull one in <a href={hashOf("models")}>Models</a>, and chat with it here.
        </p>
      </div>
    );
  }
  return (
    <div class="welcome">
      <Logo size={44} />
      <h2>{model === "" ? "Hello" : `Ask ${shortName(model)}`}</h2>
      {modelsError.value !== null && list === null ? (
        <p class="soft">{modelsError.value}</p>
      ) : (
        <p class="soft">
          It runs on this server, and nothing you write leaves it.
          {model !== "" && has(model, "vision") && " It sees pictures: drop or paste one."}
          {modelNamed(model)?.capabilities?.includes("audio") && " It hears recordings: record or drop one."}
        </p>
      )}
      <div class="ideas">
        {IDEAS.map((idea) => (
          <button key={idea} type="button" class="idea" onClick={() => setDraft(idea)}>
            {idea}
          </button>
        ))}
      </div>
    </div>
  );
}
