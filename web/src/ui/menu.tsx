import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { IconButton } from "./button";
import { classes, newId } from "./classes";
import { Check, type Icon, More } from "./icons";
import type { Box, Placement } from "./layer";
import { Popover } from "./popover";

export interface MenuItem {
  label: string;
  icon?: Icon;
  onSelect: () => void;
  /** A choice that is on or off; undefined for others. */
  checked?: boolean;
  danger?: boolean;
  disabled?: boolean;
  /** Shown at the end: a count, a key. */
  hint?: string;
}

/** null is a line between groups, a text alone a heading. */
export type MenuEntry = MenuItem | string | null;

export interface MenuPopupProps extends Placement {
  open: boolean;
  onClose: () => void;
  anchor: () => Element | Box | null;
  label: string;
  items: MenuEntry[];
  id?: string;
}

export function MenuPopup({ items, onClose, ...props }: MenuPopupProps) {
  const typed = useRef({ text: "", at: 0 });

  const onKeyDown = (event: KeyboardEvent & { currentTarget: HTMLElement }) => {
    const all = [...event.currentTarget.querySelectorAll<HTMLElement>("[role^=menuitem]:not([disabled])")];
    const at = all.indexOf(document.activeElement as HTMLElement);
    const go = (index: number) => all[(index + all.length) % all.length]?.focus();
    if (event.key === "ArrowDown") go(at + 1);
    else if (event.key === "ArrowUp") go(at < 0 ? -1 : at - 1);
    else if (event.key === "Home") go(0);
    else if (event.key === "End") go(-1);
    else if (event.key === "Tab") onClose();
    else if (event.key.length === 1 && event.key !== " " && !event.ctrlKey && !event.metaKey) {
      const { text, at: when } = typed.current;
      const now = {
        text: (event.timeStamp - when < 700 ? text : "") + event.key.toLowerCase(),
        at: event.timeStamp,
      };
      typed.current = now;
      const order = [...all.slice(at + (now.text.length > 1 ? 0 : 1)), ...all];
      order.find((each) => each.textContent?.trim().toLowerCase().startsWith(now.text))?.focus();
    } else return;
    if (event.key !== "Tab") event.preventDefault();
  };

  return (
    <Popover {...props} onClose={onClose} role="menu" class="menu">
      <div onKeyDown={onKeyDown} role="none" class="menu-items">
        {items.map((item, index) => {
          if (item === null) return <hr key={index} />;
          if (typeof item === "string") {
            return (
              <div key={item} class="menu-heading" role="presentation">
                {item}
              </div>
            );
          }
          const Glyph = item.icon;
          return (
            <button
              key={index}
              type="button"
              {...(item.checked === undefined
                ? { role: "menuitem" as const }
                : { role: "menuitemcheckbox" as const, "aria-checked": item.checked })}
              disabled={item.disabled}
              tabIndex={-1}
              data-autofocus={
                items.findIndex((each) => each !== null && typeof each !== "string") === index || undefined
              }
              class={classes("menu-item", item.danger && "danger")}
              onPointerMove={(event) => event.currentTarget.focus({ preventScroll: true })}
              onClick={() => {
                onClose();
                item.onSelect();
              }}
            >
              {Glyph && <Glyph size={17} />}
              <span class="grow truncate" dir="auto">
                {item.label}
              </span>
              {item.hint && <span class="menu-hint">{item.hint}</span>}
              {item.checked && <Check size={16} />}
            </button>
          );
        })}
      </div>
    </Popover>
  );
}

export interface MenuButtonProps extends Placement {
  /** The name of the button and of the menu. */
  label: string;
  items: MenuEntry[] | (() => MenuEntry[]);
  icon?: Icon;
  size?: "s" | "m";
  class?: string;
  /** What the button shows instead of an icon. */
  children?: ComponentChildren;
}

export function MenuButton({
  label,
  items,
  icon = More,
  size,
  children,
  side,
  align,
  ...rest
}: MenuButtonProps) {
  const open = useSignal(false);
  const button = useRef<HTMLButtonElement>(null);
  const id = useRef(newId("menu"));
  const common = {
    buttonRef: button,
    "aria-haspopup": "menu" as const,
    "aria-expanded": open.value,
    "aria-controls": open.value ? id.current : undefined,
    onClick: (event: Event) => {
      event.preventDefault();
      event.stopPropagation();
      open.value = !open.value;
    },
    onKeyDown: (event: KeyboardEvent) => {
      if (event.key !== "ArrowDown" || open.value) return;
      event.preventDefault();
      open.value = true;
    },
  };
  return (
    <>
      {children === undefined ? (
        <IconButton icon={icon} label={label} size={size} class={rest.class} {...common} />
      ) : (
        <button
          type="button"
          ref={button}
          {...{ ...common, buttonRef: undefined }}
          aria-label={label}
          class={classes("button quiet", size === "s" && "small-control", rest.class)}
        >
          {children}
        </button>
      )}
      <MenuPopup
        id={id.current}
        open={open.value}
        onClose={() => {
          open.value = false;
        }}
        anchor={() => button.current}
        label={label}
        items={open.value ? (typeof items === "function" ? items() : items) : []}
        side={side}
        align={align}
      />
    </>
  );
}
