import { count, short } from "../ui/format";
import type { Conversation } from "./conversation";

/** How much of the context the branch that is shown takes, as of its last answer. */
export function ContextBar({ chat }: { chat: Conversation }) {
  const answer = chat.path.value.findLast((message) => message.stats?.num_ctx !== undefined);
  const { context: used = 0, num_ctx: total = 0, cached = 0 } = answer?.stats ?? {};
  if (total <= 0) return null;
  const share = (tokens: number) => `${Math.min(100, (tokens / total) * 100)}%`;
  const left = Math.max(0, total - used);
  const words = `${count(used)} of ${count(total)} tokens of the context are used, ${count(left)} are left. ${count(cached)} came from the cache.`;
  return (
    <div class="context" role="img" aria-label={words} data-tip={words}>
      <span class="context-bar">
        <span class="context-cached" style={{ inlineSize: share(Math.min(cached, used)) }} />
        <span
          class={used / total > 0.9 ? "context-used full" : "context-used"}
          style={{ inlineSize: share(Math.max(0, used - cached)) }}
        />
      </span>
      <span class="numbers">
        {short(used)} / {short(total)}
      </span>
    </div>
  );
}
