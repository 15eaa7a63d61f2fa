import type { LiveModel } from "../api/types";
import { count, plural } from "../ui/format";
import { rowName } from "./cells";
import { runningThrough } from "./icicle";
import { DataTable, Panel } from "./panel";
import { PrefixPicture } from "./prefix_picture";

export function Prefixes({ model }: { model: LiveModel }) {
  const { prefixes } = model;
  if (prefixes === null) return null;
  const { nodes, hits, misses, reused_tokens, evicted } = prefixes;
  const running = runningThrough(nodes, model.sequences);
  return (
    <Panel
      wide
      title="Prefix tree"
      about="What is remembered of earlier prompts: a new one that begins alike starts where they part, instead of being read again."
      table={() => (
        <DataTable
          label="Nodes of the prefix tree"
          none="The tree is empty."
          rows={nodes.map((node, index) => ({ ...node, index }))}
          columns={[
            { head: "Node", numeric: true, cell: ({ index }) => count(index) },
            { head: "Continues", numeric: true, cell: ({ parent }) => (parent < 0 ? "–" : count(parent)) },
            { head: "Tokens", numeric: true, cell: ({ begin, end }) => `${count(begin)}–${count(end - 1)}` },
            { head: "Length", numeric: true, cell: ({ begin, end }) => count(end - begin) },
            { head: "Hits", numeric: true, cell: (node) => count(node.hits) },
            { head: "Ends here", cell: ({ rows }) => rows.map(rowName).join(", ") },
            { head: "In use", cell: ({ index }) => (running.has(index) ? "yes" : "") },
          ]}
        />
      )}
    >
      <p class="cache-facts">
        {plural(hits, "prompt")} began like an earlier one, {count(misses)} did not ·{" "}
        {plural(reused_tokens, "token")} not read again · {plural(evicted, "cell")} given up for others
      </p>
      {nodes.length === 0 ? (
        <p class="panel-none">The tree is empty: send a prompt to see it grow.</p>
      ) : (
        <>
          <PrefixPicture nodes={nodes} sequences={model.sequences} />
          <ul class="drawing-legend">
            <li class="legend-note">
              <span class="legend-hits" aria-hidden="true" /> the stronger, the more often reused
            </li>
            <li class="legend-note">
              <span class="legend-running" aria-hidden="true" /> in use now
            </li>
          </ul>
        </>
      )}
    </Panel>
  );
}
