import { useComputed, useSignal } from "@preact/signals";
import type { TensorInfo } from "../api/types";
import { Button } from "../ui/button";
import { Select, TextField } from "../ui/fields";
import { count, short } from "../ui/format";
import { shapeText, valuesOf } from "./list";

const PAGE = 200;

/** The tensors of a file, filtered by name and type. */
export function Tensors({ tensors }: { tensors: TensorInfo[] }) {
  const query = useSignal("");
  const type = useSignal("");
  const limit = useSignal(PAGE);
  const types = [...new Set(tensors.map((each) => each.type))].sort();
  const found = useComputed(() => {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    return tensors.filter(
      (each) =>
        (type.value === "" || each.type === type.value) &&
        words.every((word) => each.name.toLowerCase().includes(word)),
    );
  });
  const values = found.value.reduce((sum, { shape }) => sum + valuesOf(shape), 0);
  return (
    <section class="card padded" aria-label="Tensors">
      <div class="table-tools">
        <TextField
          label="Filter tensors"
          hideLabel
          type="search"
          placeholder="Filter by name: attn blk.3"
          value={query.value}
          onInput={(value) => {
            query.value = value;
            limit.value = PAGE;
          }}
        />
        <Select
          label="Type"
          hideLabel
          value={type.value}
          options={[
            { value: "", label: "All types" },
            ...types.map((each) => ({ value: each, label: each })),
          ]}
          onChange={(value) => {
            type.value = value;
            limit.value = PAGE;
          }}
        />
        <span class="small faint numbers" role="status">
          {count(found.value.length)} of {count(tensors.length)} · {short(values)} values
        </span>
      </div>
      <div class="wide-table">
        <table class="data-table">
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">Type</th>
              <th scope="col" class="number">
                Shape
              </th>
              <th scope="col" class="number">
                Values
              </th>
            </tr>
          </thead>
          <tbody>
            {found.value.slice(0, limit.value).map((tensor) => (
              <tr key={tensor.name}>
                <td class="mono">{tensor.name}</td>
                <td class="mono">{tensor.type}</td>
                <td class="number">{shapeText(tensor.shape)}</td>
                <td class="number">{count(valuesOf(tensor.shape))}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {found.value.length > limit.value && (
        <Button
          onClick={() => {
            limit.value += PAGE * 5;
          }}
        >
          Show more
        </Button>
      )}
    </section>
  );
}
