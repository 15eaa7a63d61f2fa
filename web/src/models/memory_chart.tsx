import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { isAbort, messageOf } from "../api/client";
import { getMemory } from "../api/memory";
import type { MemoryPlan } from "../api/types";
import { TextField } from "../ui/fields";
import { bytes } from "../ui/format";
import { Notice } from "../ui/notice";
import { Spinner } from "../ui/progress";
import { verdictOf } from "./list";

/** Return the whole number in a text; undefined for none, null for something else. */
export function wholeIn(text: string): number | undefined | null {
  if (text.trim() === "") return undefined;
  const value = Number(text);
  return Number.isInteger(value) && value > 0 && value < 2 ** 31 ? value : null;
}

const NOTICE = { fits: "success", tight: "warning", "too large": "error" } as const;

/** What a model takes, layer by layer, for as many sequences and as long a context as one likes. */
export function MemoryChart({ name }: { name: string }) {
  const context = useSignal("");
  const parallel = useSignal("");
  const plan = useSignal<MemoryPlan | null>(null);
  const error = useSignal<string | null>(null);
  const waiting = useSignal(true);
  const num_ctx = wholeIn(context.value);
  const sequences = wholeIn(parallel.value);

  useEffect(() => {
    if (num_ctx === null || sequences === null) return;
    const ending = new AbortController();
    waiting.value = true;
    const timer = setTimeout(
      () =>
        getMemory(name, { num_ctx, parallel: sequences }, ending.signal).then(
          (found) => {
            plan.value = found;
            error.value = null;
            waiting.value = false;
          },
          (problem) => {
            if (isAbort(problem)) return;
            error.value = messageOf(problem);
            waiting.value = false;
          },
        ),
      plan.peek() === null ? 0 : 400,
    );
    return () => {
      clearTimeout(timer);
      ending.abort();
    };
  }, [name, num_ctx, sequences]);

  const wrong = "Use a whole number of at least 1.";
  return (
    <section class="card padded stack" aria-label="Memory">
      <p class="soft">
        What the model takes on this server: its weights, and the caches in which it keeps what it has read.
        Try other lengths and numbers of sequences.
      </p>
      <div class="memory-fields">
        <TextField
          label="Context length"
          type="number"
          placeholder={plan.value ? String(plan.value.context) : "As the server says"}
          value={context.value}
          error={num_ctx === null ? wrong : null}
          onInput={(value) => {
            context.value = value;
          }}
        />
        <TextField
          label="Sequences at once"
          type="number"
          placeholder={plan.value ? String(plan.value.parallel) : "As the server says"}
          value={parallel.value}
          error={sequences === null ? wrong : null}
          onInput={(value) => {
            parallel.value = value;
          }}
        />
        <span role="status" class="memory-wait">
          {waiting.value && (
            <>
              <Spinner size={16} />
              <span class="visually-hidden">Counting</span>
            </>
          )}
        </span>
      </div>
      {error.value && <Notice kind="error">{error.value}</Notice>}
      {plan.value && <Plan plan={plan.value} />}
    </section>
  );
}

function Plan({ plan }: { plan: MemoryPlan }) {
  const verdict = verdictOf(plan);
  const largest = plan.rows.reduce((most, { weights, cache }) => Math.max(most, weights + cache), 1);
  const devices = new Set(plan.rows.map(({ device }) => device));
  const weights = plan.rows.reduce((sum, row) => sum + row.weights, 0);
  const caches = plan.rows.reduce((sum, row) => sum + row.cache, 0);
  return (
    <>
      <Notice kind={NOTICE[verdict.kind]}>
        <b>{verdict.label}.</b> {verdict.about}
      </Notice>
      <ul class="drawing-legend">
        <li class="legend-note">
          <span class="swatch" style={{ "--mark": "var(--series-6)" }} aria-hidden="true" /> Weights{" "}
          {bytes(weights)}
        </li>
        <li class="legend-note">
          <span class="swatch striped" style={{ "--mark": "var(--series-1)" }} aria-hidden="true" /> Caches{" "}
          {bytes(caches)}
        </li>
        <li class="legend-note">Workspace {bytes(Math.max(0, plan.total - weights - caches))}</li>
      </ul>
      <div class="layers-scroll">
        <table class="layers">
          <thead class="visually-hidden">
            <tr>
              <th scope="col">Part</th>
              <th scope="col">Picture</th>
              <th scope="col">Weights</th>
              <th scope="col">Cache</th>
              {devices.size > 1 && <th scope="col">Device</th>}
            </tr>
          </thead>
          <tbody>
            {plan.rows.map((row) => (
              <tr key={row.name}>
                <th scope="row">{row.name}</th>
                <td class="layer-bar" aria-hidden="true">
                  <span class="bar">
                    <span
                      style={{ inlineSize: `${(100 * row.weights) / largest}%`, "--mark": "var(--series-6)" }}
                    />
                    <span
                      class="striped"
                      style={{ inlineSize: `${(100 * row.cache) / largest}%`, "--mark": "var(--series-1)" }}
                    />
                  </span>
                </td>
                <td class="number">{bytes(row.weights)}</td>
                <td class="number">{row.cache > 0 ? bytes(row.cache) : "–"}</td>
                {devices.size > 1 && <td>{row.device}</td>}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
