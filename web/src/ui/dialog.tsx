import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { IconButton } from "./button";
import { classes, newId } from "./classes";
import { Close } from "./icons";

export interface DialogProps {
  title: string;
  onClose: () => void;
  size?: "s" | "m" | "l";
  /** Buttons at the bottom, the one that goes on last. */
  actions?: ComponentChildren;
  /** Whether Escape and a press outside leave it open, because only a button may end it. */
  sticky?: boolean;
  class?: string;
  children?: ComponentChildren;
}

/** A modal dialog, shown as long as it is rendered. The browser keeps focus inside and returns it afterwards. */
export function Dialog({
  title,
  onClose,
  size = "m",
  actions,
  sticky = false,
  children,
  ...rest
}: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useRef(newId("dialog"));
  const close = useRef(onClose);
  close.current = onClose;

  useLayoutEffect(() => {
    const element = dialog.current;
    if (element === null) return;
    const before = document.activeElement;
    element.showModal();
    // The browser would choose the button that closes it.
    const first = element.querySelector<HTMLElement>("[data-autofocus]");
    (first ?? element.querySelector<HTMLElement>(".dialog-body"))?.focus();
    return () => {
      close.current = () => {}; // the event of this closing comes later, and is nobody's wish
      element.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus({ preventScroll: true });
    };
  }, []);

  return (
    <dialog
      ref={dialog}
      class={classes("dialog", `dialog-${size}`, rest.class)}
      aria-labelledby={id.current}
      onCancel={(event) => {
        event.preventDefault();
        if (!sticky) close.current();
      }}
      onClose={() => close.current()}
      onMouseDown={(event) => {
        if (event.target === event.currentTarget && !sticky) close.current();
      }}
    >
      <div class="dialog-box">
        <header class="dialog-head">
          <h2 id={id.current}>{title}</h2>
          {!sticky && <IconButton icon={Close} label="Close" onClick={() => close.current()} />}
        </header>
        <div class="dialog-body" tabIndex={-1}>
          {children}
        </div>
        {actions && <footer class="dialog-actions">{actions}</footer>}
      </div>
    </dialog>
  );
}
