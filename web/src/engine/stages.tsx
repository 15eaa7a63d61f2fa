import type { LiveModel } from "../api/types";
import { bytes, count, plural } from "../ui/format";
import { DataTable, Panel } from "./panel";

/** The nodes that share the layers of a model, and what a token costs on each. */
export function Stages({ model }: { model: LiveModel }) {
  const stages = model.replicas.find(({ name }) => name === model.replica)?.stages ?? [];
  if (stages.length === 0) return null;
  return (
    <Panel
      wide
      title="Stages"
      about="The model is larger than a node: each of several computes some layers, one after the other for every token."
      side={<span class="panel-side">{plural(stages.length, "node")}</span>}
    >
      <DataTable
        label="Layers by node"
        none=""
        rows={stages}
        columns={[
          { head: "Node", cell: ({ node }) => node },
          { head: "Layers", cell: ({ begin, end }) => (end - begin > 1 ? `${begin}–${end - 1}` : begin) },
          { head: "Memory", numeric: true, cell: ({ memory_bytes }) => bytes(memory_bytes) },
          {
            head: "Time per token",
            numeric: true,
            cell: ({ token_us }) => `${count(Math.round(token_us))} µs`,
          },
          { head: "Received per token", numeric: true, cell: ({ token_bytes }) => bytes(token_bytes) },
        ]}
      />
    </Panel>
  );
}
