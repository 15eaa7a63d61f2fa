import { signal, useComputed, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { navigate } from "../state/router";
import { Button } from "../ui/button";
import { Dialog } from "../ui/dialog";
import { Select, TextField } from "../ui/fields";
import { Notice } from "../ui/notice";
import { isSame, shortName } from "./list";
import { models } from "./local";
import { make, making, stopMaking } from "./making";
import { QUANTISATIONS } from "./parameters";
import { nameProblem } from "./recipe";
import { TransferCard } from "./transfer_card";

/** The model that the dialog is about; null: it is closed. */
export const quantising = signal<string | null>(null);

/** Shows the dialog for `quantising`; there is one of it. */
export function QuantiseHost() {
  const name = quantising.value;
  return name === null ? null : <QuantiseDialog key={name} name={name} />;
}

/** A name for the result: "demo:q4_k_m" for demo. */
export const quantisedName = (name: string, type: string): string =>
  `${shortName(name).split(":")[0]}:${type.toLowerCase()}`;

const EXACT = ["F16", "BF16", "F32"];

function QuantiseDialog({ name }: { name: string }) {
  const type = useSignal("Q4_K_M");
  const result = useSignal(quantisedName(name, type.value));
  const job = useRef(making()).current;
  const problem = useComputed(
    () =>
      nameProblem(result.value) ??
      (isSame(result.value.trim(), name) ? "Choose another name: the model itself is left as it is." : null),
  );
  const now = models.value?.find((each) => isSame(each.name, name))?.details.quantization_level ?? "";
  const running = job.value?.state === "running";
  useEffect(() => () => stopMaking(job), []);

  const start = async (event: Event) => {
    event.preventDefault();
    if (problem.value !== null) return;
    const wanted = result.value.trim();
    const made = await make(
      job,
      wanted,
      { body: { from: name, quantize: type.value }, files: {}, adapters: {} },
      new Map(),
    );
    if (made) {
      quantising.value = null;
      navigate("models", wanted);
    }
  };
  return (
    <Dialog
      title={`Quantise ${shortName(name)}`}
      sticky={running}
      onClose={() => {
        quantising.value = null;
      }}
      actions={
        <>
          <Button
            onClick={() => {
              if (running) stopMaking(job);
              else quantising.value = null;
            }}
          >
            Cancel
          </Button>
          <Button
            kind="primary"
            type="submit"
            form="quantise"
            busy={running}
            disabled={problem.value !== null}
          >
            Quantise
          </Button>
        </>
      }
    >
      <form id="quantise" class="stack" onSubmit={start}>
        <p>Fewer bits for each weight: the model becomes smaller and faster, and a little less exact.</p>
        {now && !EXACT.includes(now) && (
          <Notice kind="warning">
            This model is {now} already. Errors of quantising twice add up, so the server refuses that; take
            the model as it was published (F16 or BF16).
          </Notice>
        )}
        <Select
          label="Type"
          value={type.value}
          options={QUANTISATIONS.map(({ type: each, about }) => ({
            value: each,
            label: `${each}: ${about}`,
          }))}
          onChange={(value) => {
            if (result.value === quantisedName(name, type.value)) result.value = quantisedName(name, value);
            type.value = value;
          }}
        />
        <TextField
          label="Name of the result"
          value={result.value}
          error={problem.value}
          onInput={(value) => {
            result.value = value;
          }}
        />
        {job.value && (
          <TransferCard
            transfer={job.value}
            title={`Making ${job.value.name}`}
            onStop={() => stopMaking(job)}
            onDismiss={() => {
              job.value = null;
            }}
          />
        )}
      </form>
    </Dialog>
  );
}
