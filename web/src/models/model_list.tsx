import { useSignal } from "@preact/signals";
import type { ModelTag } from "../api/types";
import { now } from "../state/clock";
import { hashOf } from "../state/route";
import { useShortcut } from "../state/shortcuts";
import { stored } from "../state/stored";
import { classes } from "../ui/classes";
import { Empty } from "../ui/empty";
import { Select, TextField } from "../ui/fields";
import { ago, bytes, count, plural } from "../ui/format";
import { ArrowDown, ArrowUp, Cube, Search } from "../ui/icons";
import { MenuButton } from "../ui/menu";
import { actionsOf } from "./actions";
import { Abilities, Fit, Staying } from "./badges";
import { matching, type Order, type SortBy, shortName, sorted } from "./list";
import { loadedAs } from "./local";

const COLUMNS: readonly { by: SortBy; label: string }[] = [
  { by: "name", label: "Name" },
  { by: "size", label: "Size" },
  { by: "parameters", label: "Parameters" },
  { by: "context", label: "Context" },
  { by: "modified", label: "Changed" },
];

const order = stored<Order>("models-order", { by: "name", descending: false }, (value) =>
  COLUMNS.some(({ by }) => by === (value as Order | null)?.by),
);

const sortBy = (by: SortBy) => {
  const same = order.value.by === by;
  // Whoever sorts by a number wants the largest first.
  order.value = { by, descending: same ? !order.value.descending : by !== "name" };
};

const focusSearch = () => {
  document.querySelector<HTMLElement>(".model-search input")?.focus();
};

export function ModelList({ models }: { models: ModelTag[] }) {
  const query = useSignal("");
  useShortcut({ keys: "/", label: "Search models", group: "Models", run: focusSearch });
  if (models.length === 0) {
    return (
      <Empty icon={Cube} title="No models yet">
        Pull one by its name above, or create one of a file that you have.
      </Empty>
    );
  }
  const shown = sorted(matching(models, query.value), order.value);
  return (
    <section class="card model-list" aria-label="Models of this server">
      <div class="model-tools">
        <div class="model-search">
          <Search size={16} />
          <TextField
            label="Search models"
            hideLabel
            type="search"
            placeholder="Search by name, type, family or ability"
            value={query.value}
            onInput={(value) => {
              query.value = value;
            }}
          />
        </div>
        <div class="model-sort">
          <Select
            label="Sort by"
            hideLabel
            value={order.value.by}
            options={COLUMNS.map(({ by, label }) => ({ value: by, label: `By ${label.toLowerCase()}` }))}
            onChange={(by) => {
              if (by !== order.value.by) sortBy(by);
            }}
          />
        </div>
        <span class="small faint numbers" role="status">
          {query.value ? `${count(shown.length)} of ` : ""}
          {plural(models.length, "model")}
        </span>
      </div>
      {shown.length === 0 ? (
        <Empty icon={Search} title="Nothing found">
          No model has all of these words in its name, type, family or abilities.
        </Empty>
      ) : (
        <table class="model-table">
          <thead>
            <tr>
              <Heading by="name" label="Name" />
              <Heading by="size" label="Size" number />
              <th scope="col">Type</th>
              <Heading by="parameters" label="Parameters" number />
              <th scope="col">Abilities</th>
              <Heading by="context" label="Context" number />
              <th scope="col">Memory</th>
              <Heading by="modified" label="Changed" />
              <th scope="col">
                <span class="visually-hidden">Actions</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {shown.map((model) => (
              <Row key={model.name} model={model} />
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}

function Heading({ by, label, number }: { by: SortBy; label: string; number?: boolean }) {
  const isOrder = order.value.by === by;
  const Arrow = order.value.descending ? ArrowDown : ArrowUp;
  return (
    <th
      scope="col"
      class={classes(number && "number")}
      aria-sort={isOrder ? (order.value.descending ? "descending" : "ascending") : undefined}
    >
      <button type="button" class={classes("sort", isOrder && "chosen")} onClick={() => sortBy(by)}>
        {label}
        {isOrder && <Arrow size={13} />}
      </button>
    </th>
  );
}

function Row({ model }: { model: ModelTag }) {
  const { name, size, details, capabilities, modified_at } = model;
  const running = loadedAs(name);
  return (
    <tr>
      <th scope="row" class="model-name">
        <a href={hashOf("models", name)} dir="auto">
          {shortName(name)}
        </a>
        {running && (
          <span class="in-memory">
            <Staying model={running} />
          </span>
        )}
      </th>
      <td class="number" data-label="Size">
        {bytes(size)}
      </td>
      <td data-label="Type">
        <span class="mono">{details.quantization_level || "–"}</span>
      </td>
      <td class="number" data-label="Parameters">
        {details.parameter_size || "–"}
      </td>
      <td data-label="Abilities">
        <Abilities names={capabilities} />
      </td>
      <td class="number" data-label="Context">
        {details.context_length ? count(details.context_length) : "–"}
      </td>
      <td data-label="Memory">
        <Fit model={model} inMemory={running !== undefined} />
      </td>
      <td data-label="Changed" class="soft nowrap">
        {ago(Date.parse(modified_at) / 1000, now.value)}
      </td>
      <td class="model-more">
        <MenuButton label={`Actions for ${shortName(name)}`} align="end" items={() => actionsOf(model)} />
      </td>
    </tr>
  );
}
