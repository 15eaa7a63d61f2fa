import type { ButtonHTMLAttributes, ComponentChildren, Ref } from "preact";
import { classes } from "./classes";
import type { Icon } from "./icons";
import { Spinner } from "./progress";

type Attributes = Omit<ButtonHTMLAttributes<HTMLButtonElement>, "icon" | "size" | "ref" | "label"> & {
  [data: `data-${string}`]: string | undefined;
};

export interface ButtonProps extends Attributes {
  /** Only the one thing that the view is for is primary. */
  kind?: "primary" | "plain" | "quiet" | "danger";
  size?: "s" | "m";
  icon?: Icon;
  busy?: boolean;
  /** A toggle that is on or off; undefined for others. */
  pressed?: boolean;
  buttonRef?: Ref<HTMLButtonElement>;
  children?: ComponentChildren;
}

export function Button(props: ButtonProps) {
  const { kind = "plain", size = "m", icon: Glyph, busy, pressed, buttonRef, children, ...rest } = props;
  return (
    <button
      type="button"
      aria-pressed={pressed}
      aria-busy={busy || undefined}
      {...rest}
      ref={buttonRef}
      disabled={rest.disabled || busy}
      class={classes("button", kind, size === "s" && "small-control", rest.class as string | undefined)}
    >
      {busy ? <Spinner size={16} /> : Glyph && <Glyph size={size === "s" ? 15 : 17} />}
      {children}
    </button>
  );
}

export interface IconButtonProps extends Omit<ButtonProps, "children" | "icon"> {
  icon: Icon;
  /** The button's name, shown on hover and focus. */
  label: string;
  /** Shown beside the name, in the words of state/shortcuts.ts. */
  shortcut?: string;
}

export function IconButton({ label, shortcut, kind = "quiet", ...props }: IconButtonProps) {
  return (
    <Button
      kind={kind}
      {...props}
      aria-label={label}
      data-tip={label}
      data-keys={shortcut}
      class={classes("icon-only", props.class as string | undefined)}
    />
  );
}
