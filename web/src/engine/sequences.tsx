import type { LiveModel, LiveSequence } from "../api/types";
import { count, duration, plural } from "../ui/format";
import { rowName } from "./cells";
import { DataTable } from "./panel";

const SERIES = 8;

/** Return the custom property with the colour of a row's sequence. */
export const colorOf = (row: number): string => `--series-${(row % SERIES) + 1}`;

/** Return what a state means. */
export const STATES: Record<LiveSequence["state"], string> = {
  running: "takes part in the steps",
  held: "waits for its tokens to be allowed",
  waiting: "waits for a slot",
  idle: "kept for later prompts",
};

/** The letter of a sequence on its colour. */
export function RowMark({ row, idle }: { row: number; idle?: boolean }) {
  return (
    <span class={idle ? "row-mark idle" : "row-mark"} style={{ "--mark": `var(${colorOf(row)})` }}>
      {rowName(row)}
    </span>
  );
}

const ORDER = { running: 0, held: 1, waiting: 2, idle: 3 };

export const inOrder = (sequences: LiveSequence[]): LiveSequence[] =>
  [...sequences].sort((a, b) => ORDER[a.state] - ORDER[b.state] || a.row - b.row);

export function SequenceTable({ model }: { model: LiveModel }) {
  return (
    <DataTable
      label="Sequences"
      none="No sequence yet: send a prompt to see one."
      rows={inOrder(model.sequences)}
      columns={[
        {
          head: "Name",
          cell: ({ row, state }) => (row < 0 ? "–" : <RowMark row={row} idle={state === "idle"} />),
        },
        {
          head: "State",
          cell: ({ state, embeds }) => (
            <span class={`state state-${state}`} data-tip={STATES[state]}>
              {state === "idle" ? "kept" : state}
              {embeds ? ", embedding" : ""}
            </span>
          ),
        },
        { head: "Client", cell: ({ client, state }) => <Client name={client} idle={state === "idle"} /> },
        { head: "Context", cell: (sequence) => <Filling sequence={sequence} context={model.context} /> },
        {
          head: "Prompt",
          numeric: true,
          cell: ({ prompt, state }) => (state === "idle" ? "" : count(prompt)),
        },
        {
          head: "Of it cached",
          numeric: true,
          cell: ({ cached, state }) => (state === "idle" ? "" : count(cached)),
        },
        {
          head: "Generated",
          numeric: true,
          cell: ({ generated, state }) => (state === "idle" ? "" : count(generated)),
        },
        { head: "Age", numeric: true, cell: ({ age_s, state }) => (state === "idle" ? "" : duration(age_s)) },
      ]}
    />
  );
}

export function Client({ name, idle }: { name: string | null; idle?: boolean }) {
  if (idle) return <span class="faint">none</span>;
  if (name === null || name === "") return <span class="faint">not named</span>;
  return <span dir="auto">{name}</span>;
}

function Filling({ sequence, context }: { sequence: LiveSequence; context: number }) {
  const share = context > 0 ? Math.min(1, sequence.tokens / context) : 0;
  return (
    <span class="filling">
      <span class="filling-bar" aria-hidden="true">
        <span
          style={{ inlineSize: `${share * 100}%`, background: `var(${colorOf(Math.max(0, sequence.row))})` }}
        />
      </span>
      <span class="numbers">{plural(sequence.tokens, "token")}</span>
    </span>
  );
}
