import type { ComponentChildren } from "preact";
import { classes } from "./classes";
import { Failure, Info, Success, Warning } from "./icons";

const ICONS = { info: Info, success: Success, warning: Warning, error: Failure };

export interface NoticeProps {
  kind?: keyof typeof ICONS;
  children: ComponentChildren;
  actions?: ComponentChildren;
}

/** Something to know that belongs to its place in a view: a warning of the server, an error of a form. */
export function Notice({ kind = "info", children, actions }: NoticeProps) {
  const Glyph = ICONS[kind];
  return (
    <div class={classes("notice", kind)} role={kind === "error" ? "alert" : undefined}>
      <Glyph size={17} />
      <div class="grow" dir="auto">
        {children}
      </div>
      {actions}
    </div>
  );
}

/** A word or two about a thing: its state, an ability, a type. */
export const Badge = (props: {
  kind?: "plain" | "accent" | "warning" | "danger";
  children: ComponentChildren;
}) => <span class={classes("badge", props.kind ?? "plain")}>{props.children}</span>;

/** Keys as they stand on the keyboard. */
export const Keys = ({ names }: { names: string[] }) => (
  <span class="keys">
    {names.map((name) => (
      <kbd key={name}>{name}</kbd>
    ))}
  </span>
);
