import type { Message, RunStats } from "../api/types";
import { count, duration, percent } from "../ui/format";

type Given = Partial<RunStats> & { reason?: string; warnings?: string[] };

/** How fast an answer came, and what was saved. */
export function Stats({ stats }: { stats: Given }) {
  const {
    tokens = 0,
    eval_s = 0,
    first_token_s = 0,
    cached = 0,
    prompt_tokens = 0,
    drafted = 0,
    accepted = 0,
  } = stats;
  const parts: { text: string; tip: string }[] = [];
  if (tokens > 1 && eval_s > 0) {
    const rate = tokens / eval_s;
    parts.push({
      text: `${rate < 10 ? rate.toFixed(1) : count(rate)} tokens/s`,
      tip: `${count(tokens)} tokens in ${duration(eval_s)}`,
    });
  } else if (tokens > 0) parts.push({ text: `${count(tokens)} tokens`, tip: "Tokens of the answer" });
  if (first_token_s > 0) {
    const load = stats.load_s ?? 0;
    const prompt = `prompt ${duration(stats.prompt_s ?? 0)}`;
    parts.push({
      text: `${duration(first_token_s)} to the first`,
      tip: load > 0.05 ? `Load ${duration(load)}, ${prompt}` : `Of that, ${prompt}`,
    });
  }
  if (cached > 0) {
    parts.push({
      text: `${count(cached)} cached`,
      tip: `${count(cached)} of ${count(prompt_tokens)} tokens of the prompt were in the cache`,
    });
  }
  if (drafted > 0) {
    const by = stats.drafted_by ? ` by ${stats.drafted_by}` : "";
    parts.push({
      text: `${percent(accepted / drafted)} of drafts accepted`,
      tip: `${count(accepted)} of ${count(drafted)} tokens that were drafted${by}`,
    });
  }
  if (parts.length === 0) return null;
  return (
    <p class="stats numbers">
      {parts.map((part) => (
        <span key={part.text} data-tip={part.tip}>
          {part.text}
        </span>
      ))}
    </p>
  );
}

/** Return what was left out of an answer or ignored, in sentences. */
export function warningsOf(stats: Message["stats"]): string[] {
  if (stats === null) return [];
  const { truncated = 0, shifted = 0, warnings = [] } = stats;
  const found: string[] = [];
  if (truncated > 0) {
    found.push(
      `The chat is longer than the context: ${count(truncated)} tokens of its beginning were left out.`,
    );
  }
  if (shifted > 0) {
    found.push(`The context was full: ${count(shifted)} tokens were dropped while the answer was written.`);
  }
  return [...found, ...warnings];
}
