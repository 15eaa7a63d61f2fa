import type { Signal } from "@preact/signals";
import type { LiveModel } from "../api/types";
import { classes } from "../ui/classes";
import { bytes, count, percent, plural } from "../ui/format";
import { CellPicture } from "./cell_picture";
import { holdingsIn, layersText, rowName } from "./cells";
import { DataTable, Panel } from "./panel";
import { inOrder, RowMark } from "./sequences";

const KINDS: Record<string, string> = {
  causal: "all tokens so far",
  sliding: "the last tokens only",
  recurrent: "states, one for each sequence",
  encoder: "what the encoder has read",
};

/** The cells of every cache of a model. */
export function Caches({ model, chosen }: { model: LiveModel; chosen: Signal<number | null> }) {
  const rows = inOrder(model.sequences).filter(({ row }) => row >= 0);
  return (
    <Panel
      wide
      title="Cells of the caches"
      about="Each token that the model has read takes one cell of memory in every layer; prompts that begin alike share cells."
      table={() => <CellTable model={model} />}
    >
      {model.caches.map((cache, index) => (
        <div key={index} class="cache">
          <h3>
            {cache.kind}
            <span class="faint"> · {layersText(cache.layers)}</span>
          </h3>
          <p class="cache-facts">
            {count(cache.used)} of {plural(cache.capacity, "cell")} used (
            {percent(cache.used / Math.max(1, cache.capacity))}), {count(cache.shared)} shared ·{" "}
            {bytes(cache.provided_bytes)}
            {KINDS[cache.kind] && <span class="faint"> · holds {KINDS[cache.kind]}</span>}
          </p>
          <CellPicture
            label={`Cells of the cache ${cache.kind}: ${count(cache.used)} of ${count(cache.capacity)} used, ${count(cache.shared)} shared`}
            cache={cache}
            sequences={model.sequences}
            chosen={chosen.value}
          />
        </div>
      ))}
      {model.caches.length === 0 && <p class="panel-none">This model keeps no cache.</p>}
      {rows.length > 0 && (
        <ul class="drawing-legend" aria-label="Sequences: choose one to see its cells">
          {rows.map(({ row, state, client }) => (
            <li key={row}>
              <button
                type="button"
                class={classes("legend-item", chosen.value === row && "chosen")}
                aria-pressed={chosen.value === row}
                onClick={() => {
                  chosen.value = chosen.value === row ? null : row;
                }}
              >
                <RowMark row={row} idle={state === "idle"} />
                {state === "idle" ? "kept" : client || state}
              </button>
            </li>
          ))}
          <li class="legend-note">
            <span class="legend-shared" aria-hidden="true" /> shared
          </li>
          <li class="legend-note">
            <span class="legend-kept" aria-hidden="true" /> kept for later prompts
          </li>
          <li class="legend-note">
            <span class="legend-free" aria-hidden="true" /> free
          </li>
        </ul>
      )}
    </Panel>
  );
}

function CellTable({ model }: { model: LiveModel }) {
  const rows = model.caches.flatMap((cache) =>
    holdingsIn(cache.runs, 0, cache.capacity).map((holding) => ({
      cache,
      ...holding,
      state: model.sequences.find(({ row }) => row === holding.row)?.state ?? "",
    })),
  );
  return (
    <DataTable
      label="Cells by sequence"
      none="No cell is used."
      rows={rows}
      columns={[
        { head: "Cache", cell: ({ cache }) => `${cache.kind}, ${layersText(cache.layers)}` },
        { head: "Sequence", cell: ({ row }) => rowName(row) },
        { head: "State", cell: ({ state }) => (state === "idle" ? "kept" : state) },
        { head: "Cells", numeric: true, cell: ({ cells }) => count(cells) },
        { head: "Positions", numeric: true, cell: ({ first, last }) => `${count(first)}–${count(last)}` },
      ]}
    />
  );
}
