import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { client, messageOf } from "../api/client";
import type { ChatRequest } from "../api/types";
import { CodeBlock } from "../markdown/code";
import { me } from "../state/session";
import { Dialog } from "../ui/dialog";
import { Notice } from "../ui/notice";
import { Spinner } from "../ui/progress";
import { Tabs } from "../ui/tabs";
import { codeFor, DIALECTS, type Dialect } from "./code_export";
import { contentsOf } from "./contents";
import type { Conversation } from "./conversation";
import { readDraft } from "./drafts";
import { requestFor } from "./request";

/** Shows how a program asks what this chat asks. */
export function CodeDialog({ chat, onClose }: { chat: Conversation; onClose: () => void }) {
  const dialect = useSignal<Dialect>("curl");
  const request = useSignal<ChatRequest | null>(null);
  const problem = useSignal<string | null>(null);
  useEffect(() => {
    const build = async () => {
      const path = [...chat.path.peek()];
      // The last answer is what the code asks for.
      while (path.at(-1)?.role === "assistant") path.pop();
      const contents = await contentsOf(path);
      const built = requestFor(chat.settings.peek(), path, contents, { model: chat.model.peek() || "MODEL" });
      if (!path.some((message) => message.role === "user")) {
        built.messages.push({ role: "user", content: readDraft(chat.id.peek()).text || "Hello!" });
      }
      request.value = built;
    };
    build().catch((error: unknown) => {
      problem.value = messageOf(error);
    });
  }, []);
  const chosen = DIALECTS.find((each) => each.name === dialect.value)!;
  const base = client.url("").replace(/\/$/, "");
  return (
    <Dialog title="This chat as code" size="l" onClose={onClose}>
      <Tabs<Dialect>
        label="Language and package"
        tabs={DIALECTS.map(({ name, label }) => ({ name, label }))}
        selected={dialect.value}
        onSelect={(name) => {
          dialect.value = name;
        }}
      >
        {problem.value !== null && <Notice kind="error">{problem.value}</Notice>}
        {request.value === null ? (
          problem.value === null && <Spinner />
        ) : (
          <div class="md code-dialog">
            {chosen.install !== null && (
              <p class="faint small">
                Needs <code>{chosen.install}</code>
                {me.value?.keys && " and your key in PUNA_API_KEY"}.
              </p>
            )}
            <CodeBlock
              key={dialect.value}
              text={codeFor(dialect.value, request.value, { base, keys: me.value?.keys ?? false }).trimEnd()}
              info={chosen.language}
            />
          </div>
        )}
      </Tabs>
    </Dialog>
  );
}
