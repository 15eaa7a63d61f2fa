import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { Button } from "../ui/button";
import { classes, newId } from "../ui/classes";
import { Columns } from "../ui/icons";

export interface PanelProps {
  title: string;
  /** One sentence for newcomers: what the panel shows. */
  about: string;
  children: ComponentChildren;
  /** The same as a table, for those who cannot use the picture. */
  table?: () => ComponentChildren;
  wide?: boolean;
  /** Shown beside the title. */
  side?: ComponentChildren;
}

/** A part of the engine's page. A picture in it can be exchanged for a table. */
export function Panel({ title, about, children, table, wide, side }: PanelProps) {
  const asTable = useSignal(false);
  const id = useRef(newId("panel")).current;
  return (
    <section class={classes("panel card", wide && "wide")} aria-labelledby={id}>
      <header class="panel-head">
        <h2 id={id} class="grow">
          {title}
        </h2>
        {side}
        {table && (
          <Button
            kind="quiet"
            size="s"
            icon={Columns}
            pressed={asTable.value}
            aria-label={`${title} as a table`}
            onClick={() => {
              asTable.value = !asTable.value;
            }}
          >
            Table
          </Button>
        )}
      </header>
      <p class="panel-about">{about}</p>
      {table && asTable.value ? table() : children}
    </section>
  );
}

export interface Column<Row> {
  head: string;
  cell: (row: Row) => ComponentChildren;
  numeric?: boolean;
}

/** A table that scrolls within its panel. */
export function DataTable<Row>(props: {
  label: string;
  columns: Column<Row>[];
  rows: Row[];
  /** What stands for no rows. */
  none: string;
}) {
  const { label, columns, rows, none } = props;
  if (rows.length === 0) return <p class="panel-none">{none}</p>;
  return (
    // biome-ignore lint/a11y/useSemanticElements: a landmark for every table would be too many
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be in reach of the keyboard
    <div class="table-scroll" role="group" aria-label={label} tabIndex={0}>
      <table class="data-table">
        <thead>
          <tr>
            {columns.map(({ head, numeric }) => (
              <th key={head} scope="col" class={numeric ? "number" : undefined}>
                {head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr key={index}>
              {columns.map(({ head, cell, numeric }) => (
                <td key={head} class={numeric ? "number" : undefined}>
                  {cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
