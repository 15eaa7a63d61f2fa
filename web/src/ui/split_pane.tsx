import { useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { readStored, writeStored } from "../state/stored";

export interface SplitPaneProps {
  /** What the line between both is called, and under which name its place is kept. */
  label: string;
  name: string;
  /** The share of the first part, from 0 to 1. */
  initial?: number;
  least?: number;
  children: [ComponentChildren, ComponentChildren];
}

/** Two parts side by side with a line that is dragged, or moved by arrow keys; one above the other when narrow. */
export function SplitPane({ label, name, initial = 0.5, least = 0.2, children }: SplitPaneProps) {
  const key = `puna.split.${name}`;
  const clamp = (value: number) => Math.min(1 - least, Math.max(least, value));
  const kept = Number(readStored(() => localStorage, key));
  const share = useSignal(clamp(kept > 0 ? kept : initial));
  const box = useRef<HTMLDivElement>(null);

  const set = (value: number) => {
    share.value = clamp(value);
    writeStored(() => localStorage, key, share.value.toFixed(3));
  };
  const isRightToLeft = () => box.current !== null && getComputedStyle(box.current).direction === "rtl";

  const onPointerMove = (event: PointerEvent & { currentTarget: HTMLElement }) => {
    if (!event.currentTarget.hasPointerCapture(event.pointerId) || box.current === null) return;
    const { left, width } = box.current.getBoundingClientRect();
    const at = (event.clientX - left) / width;
    set(isRightToLeft() ? 1 - at : at);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = isRightToLeft() ? -0.02 : 0.02;
    if (event.key === "ArrowRight") set(share.value + step);
    else if (event.key === "ArrowLeft") set(share.value - step);
    else if (event.key === "Home") set(0);
    else if (event.key === "End") set(1);
    else return;
    event.preventDefault();
  };

  return (
    <div ref={box} class="split">
      <div class="split-part" style={{ flexBasis: `${share.value * 100}%` }}>
        {children[0]}
      </div>
      {/* biome-ignore lint/a11y/useSemanticElements: an hr cannot be moved */}
      <div
        class="split-line"
        role="separator"
        tabIndex={0}
        aria-orientation="vertical"
        aria-label={label}
        aria-valuemin={Math.round(least * 100)}
        aria-valuemax={Math.round((1 - least) * 100)}
        aria-valuenow={Math.round(share.value * 100)}
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          event.preventDefault();
        }}
        onPointerMove={onPointerMove}
        onDblClick={() => set(initial)}
        onKeyDown={onKeyDown}
      />
      <div class="split-part" style={{ flexBasis: `${(1 - share.value) * 100}%` }}>
        {children[1]}
      </div>
    </div>
  );
}
