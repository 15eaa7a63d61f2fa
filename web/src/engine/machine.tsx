import { unloadModel } from "../api/models";
import type { Live, LiveModel } from "../api/types";
import { ScopedButton } from "../shell/scoped_button";
import { hashOf } from "../state/route";
import { bytes, duration } from "../ui/format";
import { Unload } from "../ui/icons";
import { Badge } from "../ui/notice";
import { toastError } from "../ui/toast";
import { DataTable, Panel } from "./panel";

/** A part of a bar of memory. */
interface Part {
  label: string;
  size: number;
  color: string;
  /** Drawn as promised, not used. */
  hollow?: boolean;
}

/** Return what a model's memory consists of; parts that the process does not tell of are "the rest". */
export function memoryParts(model: LiveModel): Part[] {
  const {
    weight_bytes: weights,
    cache_bytes: cache,
    cache_limit_bytes: limit,
    process_bytes: process,
  } = model;
  return [
    { label: "Weights", size: weights, color: "--series-6" },
    { label: "Caches, used", size: cache, color: "--series-1" },
    { label: "Caches, promised", size: Math.max(0, limit - cache), color: "--series-1", hollow: true },
    {
      label: "The rest of its process",
      size: Math.max(0, process - weights - cache),
      color: "--line-strong",
    },
  ];
}

export function Machine({ state }: { state: Live }) {
  const { memory_total: total, memory_available: available, cores } = state.machine;
  const processes = state.models.reduce((sum, { process_bytes }) => sum + process_bytes, 0);
  const parts: Part[] = [
    { label: "Models", size: processes, color: "--series-1" },
    { label: "Others", size: Math.max(0, total - available - processes), color: "--line-strong" },
  ];
  return (
    <Panel
      title="Memory"
      about="What models take, and what their caches may still grow to: that is promised, so that a long answer never runs out of it."
      table={() => (
        <DataTable
          label="Memory by model"
          none="No model is in memory."
          rows={state.models}
          columns={[
            { head: "Model", cell: ({ name }) => name },
            ...["Weights", "Caches, used", "Caches, promised", "The rest of its process"].map(
              (head, index) => ({
                head,
                numeric: true,
                cell: (model: LiveModel) => bytes(memoryParts(model)[index]!.size),
              }),
            ),
          ]}
        />
      )}
    >
      <MemoryBar
        label={`This machine, ${cores} cores`}
        said={`${bytes(available)} of ${bytes(total)} left`}
        parts={parts}
        total={total}
      />
      {state.models
        .filter((model) => model.state === "ready")
        .map((model) => {
          const own = memoryParts(model);
          const sum = own.reduce((all, { size }) => all + size, 0);
          return <MemoryBar key={model.name} label={model.name} said={bytes(sum)} parts={own} total={sum} />;
        })}
    </Panel>
  );
}

function MemoryBar(props: { label: string; said: string; parts: Part[]; total: number }) {
  const { label, said, parts, total } = props;
  return (
    <div class="memory">
      <div class="memory-head">
        <span class="truncate" dir="auto">
          {label}
        </span>
        <span class="numbers faint">{said}</span>
      </div>
      <div class="memory-bar" aria-hidden="true">
        {parts.map(({ label: part, size, color, hollow }) => (
          <span
            key={part}
            class={hollow ? "hollow" : undefined}
            data-tip={`${part}: ${bytes(size)}`}
            style={{ inlineSize: `${(100 * size) / Math.max(1, total)}%`, "--mark": `var(${color})` }}
          />
        ))}
      </div>
      <ul class="memory-parts">
        {parts.map(({ label: part, size, color, hollow }) => (
          <li key={part}>
            <span
              class={hollow ? "swatch hollow" : "swatch"}
              style={{ "--mark": `var(${color})` }}
              aria-hidden="true"
            />
            {part} <b>{bytes(size)}</b>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** How long a model still stays, in words. */
export const staying = (expires_in_s: number | null): string =>
  expires_in_s === null ? "as long as the server runs" : `${duration(expires_in_s)} more without requests`;

export function Runners({ state }: { state: Live }) {
  return (
    <Panel
      title="Runners"
      about="Each model in memory has a process of its own; one that nobody asks for a while is ended."
    >
      {state.models.map((model) => (
        <article key={model.name} class="runner">
          <div class="row wrap">
            <a class="runner-name" href={hashOf("models", model.name)} dir="auto">
              {model.name}
            </a>
            {model.engine && <Badge kind="accent">{model.engine}</Badge>}
            {model.kernels && <Badge>{model.kernels}</Badge>}
            <span class="grow" />
            <ScopedButton
              scope="manage"
              kind="quiet"
              size="s"
              icon={Unload}
              aria-label={`Unload ${model.name}`}
              onClick={() =>
                unloadModel(model.name).catch((error) => toastError(error, "The model was not unloaded"))
              }
            >
              Unload
            </ScopedButton>
          </div>
          {model.state === "loading" ? (
            <p class="soft">is being loaded</p>
          ) : (
            <dl class="facts">
              <dt>Age</dt>
              <dd>{duration(model.age_s)}</dd>
              <dt>Took to load</dt>
              <dd>{duration(model.load_s)}</dd>
              <dt>Stays</dt>
              <dd>{staying(model.expires_in_s)}</dd>
              <dt>This step since</dt>
              <dd>{model.step_age_s > 0 ? duration(model.step_age_s) : "no step now"}</dd>
            </dl>
          )}
        </article>
      ))}
    </Panel>
  );
}
