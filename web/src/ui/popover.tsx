import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { classes } from "./classes";
import { type Box, hide, type Placement, showBeside } from "./layer";

export interface PopoverProps extends Placement {
  open: boolean;
  onClose: () => void;
  /** The element that it belongs to, or a point. */
  anchor: () => Element | Box | null;
  label: string;
  role?: "dialog" | "menu" | "listbox";
  id?: string;
  class?: string;
  children: ComponentChildren;
}

/**
 * A floating panel beside its anchor. Escape and a press outside close it; focus goes in when it opens and returns
 * to where it was.
 */
export function Popover(props: PopoverProps) {
  const { open, onClose, anchor, label, role = "dialog", id, side, align, children } = props;
  const layer = useRef<HTMLDivElement>(null);
  const close = useRef(onClose);
  close.current = onClose;

  useLayoutEffect(() => {
    const element = layer.current;
    if (!open || element === null) return;
    const before = document.activeElement;
    const settle = () => {
      const at = anchor();
      if (at !== null) showBeside(element, at, { side, align });
    };
    settle();
    const first = element.querySelector<HTMLElement>("[data-autofocus]") ?? element;
    first.focus({ preventScroll: true });

    const onPress = (event: PointerEvent) => {
      const target = event.target as Node;
      const at = anchor();
      const inside = element.contains(target) || (at instanceof Element && at.contains(target));
      // Another layer that was opened from this one is not outside of it.
      if (
        !inside &&
        !(target instanceof Element && target.closest("[popover], dialog") !== element.closest("dialog"))
      ) {
        close.current();
      }
    };
    const onKey = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || event.isComposing) return;
      event.preventDefault();
      event.stopPropagation();
      close.current();
    };
    const watcher = new ResizeObserver(settle);
    watcher.observe(element);
    document.addEventListener("pointerdown", onPress, true);
    element.addEventListener("keydown", onKey);
    addEventListener("resize", settle);
    return () => {
      watcher.disconnect();
      document.removeEventListener("pointerdown", onPress, true);
      element.removeEventListener("keydown", onKey);
      removeEventListener("resize", settle);
      const returns = element.contains(document.activeElement) || document.activeElement === document.body;
      hide(element);
      if (returns && before instanceof HTMLElement) before.focus({ preventScroll: true });
    };
  }, [open]);

  useEffect(() => {
    const element = layer.current;
    return () => {
      if (element !== null) hide(element);
    };
  }, []);

  return open ? (
    <div
      ref={layer}
      id={id}
      class={classes("layer", props.class)}
      popover="manual"
      {...{ role, "aria-label": label }}
      tabIndex={-1}
    >
      {children}
    </div>
  ) : null;
}
