import { signal } from "@preact/signals";
import type { RefObject } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { messageOf } from "../api/client";
import { Button, IconButton } from "./button";
import { classes } from "./classes";
import { Close, Failure, Info, Success, Warning } from "./icons";

export interface Toast {
  text: string;
  kind?: "info" | "success" | "warning" | "error";
  action?: { label: string; run: () => void };
  /** 0: until it is closed. */
  seconds?: number;
}

interface Shown extends Toast {
  id: number;
}

const shown = signal<Shown[]>([]);
const timers = new Map<number, ReturnType<typeof setTimeout>>();
let last = 0;

/** Tell something in passing; returns how to take it back. */
export function toast(message: Toast): () => void {
  const id = ++last;
  shown.value = [...shown.value, { ...message, id }].slice(-4);
  start(id);
  return () => close(id);
}

/** Tell about an error that has no place of its own in the view. */
export const toastError = (error: unknown, doing?: string): (() => void) =>
  toast({ kind: "error", text: doing ? `${doing}: ${messageOf(error)}` : messageOf(error), seconds: 10 });

function close(id: number): void {
  stop(id);
  shown.value = shown.value.filter((each) => each.id !== id);
}

function start(id: number): void {
  const message = shown.value.find((each) => each.id === id);
  const seconds = message?.seconds ?? (message?.action ? 10 : 5);
  if (message !== undefined && seconds > 0)
    timers.set(
      id,
      setTimeout(() => close(id), seconds * 1000),
    );
}

function stop(id: number): void {
  clearTimeout(timers.get(id));
  timers.delete(id);
}

const ICONS = { info: Info, success: Success, warning: Warning, error: Failure };

export function ToastHost() {
  const layer = useRef<HTMLElement>(null);
  const newest = shown.value.at(-1);
  useLayoutEffect(() => {
    const element = layer.current;
    if (element === null) return;
    // Shown anew, the layer lies above a dialog that was opened meanwhile.
    if (element.matches(":popover-open")) element.hidePopover();
    if (newest !== undefined) element.showPopover();
  }, [newest?.id]);
  return (
    <>
      {/* What is read aloud: a layer that appears together with its text may not be. */}
      <div class="visually-hidden" aria-live={newest?.kind === "error" ? "assertive" : "polite"}>
        {newest?.text}
      </div>
      <Toasts layer={layer} />
    </>
  );
}

function Toasts({ layer }: { layer: RefObject<HTMLElement | null> }) {
  return (
    <section ref={layer} class="toasts" popover="manual" aria-label="Messages">
      {shown.value.map((each) => {
        const kind = each.kind ?? "info";
        const Glyph = ICONS[kind];
        return (
          <div
            key={each.id}
            class={classes("toast", kind)}
            onPointerEnter={() => stop(each.id)}
            onPointerLeave={() => start(each.id)}
            onFocusCapture={() => stop(each.id)}
            onBlurCapture={() => start(each.id)}
          >
            <Glyph size={18} />
            <span class="grow" dir="auto">
              {each.text}
            </span>
            {each.action && (
              <Button
                size="s"
                kind="quiet"
                class="toast-action"
                onClick={() => {
                  close(each.id);
                  each.action?.run();
                }}
              >
                {each.action.label}
              </Button>
            )}
            <IconButton icon={Close} label="Dismiss" size="s" onClick={() => close(each.id)} />
          </div>
        );
      })}
    </section>
  );
}
