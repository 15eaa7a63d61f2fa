import { useMemo } from "preact/hooks";
import type { LiveSteps } from "../api/types";
import { count, percent, plural } from "../ui/format";
import { Chart } from "./chart";
import { columns, type History, PARTS, type Part, smoothed, stretches } from "./history";
import { DataTable, Panel } from "./panel";
import { speed } from "./tiles";

const SMOOTHING_S = 2;
const TABLE_S = 30;

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const timeOf = (seconds: number) => clock.format(seconds * 1000);

interface TimeProps {
  history: History | undefined;
  now: number;
}

const SPEEDS = [
  { label: "Generated", color: "--series-1" },
  { label: "Prompts read", color: "--series-7", dash: [7, 4] },
];

export function Speed({ history, now }: TimeProps) {
  const data = useMemo(
    () => columns(smoothed(history, SMOOTHING_S), [({ generated }) => generated, ({ prompt }) => prompt]),
    [history],
  );
  return (
    <Panel
      title="Tokens per second"
      about="How fast answers are written and prompts are read, all clients together."
      table={() => (
        <DataTable
          label="Tokens per second"
          none="Nothing happened yet."
          rows={stretches(history, TABLE_S)}
          columns={[
            { head: "From", cell: ({ time }) => timeOf(time) },
            { head: "Generated", numeric: true, cell: ({ generated }) => speed(generated) },
            { head: "Prompts read", numeric: true, cell: ({ prompt }) => speed(prompt) },
            { head: "Reused", numeric: true, cell: ({ cached }) => speed(cached) },
          ]}
        />
      )}
    >
      <Chart
        label="Tokens per second over the last minutes"
        series={SPEEDS}
        data={data}
        format={speed}
        now={now}
      />
    </Panel>
  );
}

const NAMES: Record<Part, string> = {
  prompt: "Prompts",
  decode: "Decoding",
  sample: "Sampling",
  mask: "Formats",
  draft: "Drafting",
  image: "Images",
  other: "Other",
};
const PART_SERIES = PARTS.map((part, index) => ({ label: NAMES[part], color: `--series-${index + 1}` }));

export function StepTime({ history, now }: TimeProps) {
  const data = useMemo(
    () =>
      columns(
        smoothed(history, SMOOTHING_S),
        PARTS.map((part) => (sample) => sample.shares[part]),
      ),
    [history],
  );
  return (
    <Panel
      title="Where the time goes"
      about="What the engine does with each second: the empty part above is waiting for work."
      table={() => (
        <DataTable
          label="Shares of time"
          none="Nothing happened yet."
          rows={stretches(history, TABLE_S)}
          columns={[
            { head: "From", cell: ({ time }) => timeOf(time) },
            ...PARTS.map((part) => ({
              head: NAMES[part],
              numeric: true,
              cell: ({ shares }: { shares: Record<Part, number> }) => percent(shares[part]),
            })),
          ]}
        />
      )}
    >
      <Chart
        label="Shares of the time over the last minutes"
        series={PART_SERIES}
        data={data}
        stack
        most={1}
        format={percent}
        now={now}
      />
    </Panel>
  );
}

const DRAFTS = [
  { label: "Proposed", color: "--series-6", dash: [7, 4] },
  { label: "Accepted", color: "--series-1" },
];

export function Drafts({ history, steps, now }: TimeProps & { steps: LiveSteps }) {
  const data = useMemo(
    () => columns(smoothed(history, SMOOTHING_S), [({ drafted }) => drafted, ({ accepted }) => accepted]),
    [history],
  );
  const about = "Tokens guessed ahead and then checked all at once; each one accepted saves a step.";
  if (steps.drafted === 0) {
    return (
      <Panel title="Drafts" about={about}>
        <p class="panel-none">Nothing was guessed since the model was loaded.</p>
      </Panel>
    );
  }
  return (
    <Panel
      title="Drafts"
      about={about}
      side={
        <span class="panel-side">
          {percent(steps.accepted / steps.drafted)} of {count(steps.drafted)} accepted
        </span>
      }
      table={() => (
        <DataTable
          label="Drafts per second"
          none={`${plural(steps.accepted, "token")} of ${count(steps.drafted)} accepted since the model was loaded.`}
          rows={stretches(history, TABLE_S)}
          columns={[
            { head: "From", cell: ({ time }) => timeOf(time) },
            { head: "Proposed", numeric: true, cell: ({ drafted }) => speed(drafted) },
            { head: "Accepted", numeric: true, cell: ({ accepted }) => speed(accepted) },
          ]}
        />
      )}
    >
      <Chart
        label="Drafts per second over the last minutes"
        series={DRAFTS}
        data={data}
        format={speed}
        now={now}
      />
    </Panel>
  );
}
