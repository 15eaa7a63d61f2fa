// Places floating parts beside what they belong to, in the browser's top layer.

export interface Box {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

export interface Placement {
  side?: "below" | "above";
  align?: "start" | "center" | "end";
}

const GAP = 6;
const MARGIN = 8;

/** Return where a part of this size goes: on the wanted side if there is room, and always inside the window. */
export function place(
  anchor: Box,
  size: { width: number; height: number },
  room: { width: number; height: number },
  { side = "below", align = "start" }: Placement = {},
  rightToLeft = false,
): { left: number; top: number; maxHeight: number } {
  const below = room.height - anchor.bottom - GAP - MARGIN;
  const above = anchor.top - GAP - MARGIN;
  const fits = side === "below" ? below >= size.height : above >= size.height;
  const goesBelow = (side === "below") === (fits || (side === "below" ? below >= above : above >= below));
  const maxHeight = Math.max(80, goesBelow ? below : above);
  const height = Math.min(size.height, maxHeight);
  const atLeft = (align === "start") !== rightToLeft;
  const wanted =
    align === "center"
      ? (anchor.left + anchor.right - size.width) / 2
      : atLeft
        ? anchor.left
        : anchor.right - size.width;
  return {
    left: Math.max(MARGIN, Math.min(wanted, room.width - MARGIN - size.width)),
    top: goesBelow ? anchor.bottom + GAP : anchor.top - GAP - height,
    maxHeight,
  };
}

/** Show `layer` (an element with `popover="manual"`) beside `anchor`, or at a point. */
export function showBeside(layer: HTMLElement, anchor: Element | Box, placement?: Placement): void {
  if (!layer.matches(":popover-open")) layer.showPopover();
  layer.style.maxHeight = "";
  const { offsetWidth: width, offsetHeight: height } = layer;
  const box = anchor instanceof Element ? anchor.getBoundingClientRect() : anchor;
  const rightToLeft = getComputedStyle(document.documentElement).direction === "rtl";
  const spot = place(
    box,
    { width, height },
    { width: innerWidth, height: innerHeight },
    placement,
    rightToLeft,
  );
  layer.style.left = `${spot.left}px`;
  layer.style.top = `${spot.top}px`;
  layer.style.maxHeight = `${spot.maxHeight}px`;
}

export function hide(layer: HTMLElement): void {
  if (layer.matches(":popover-open")) layer.hidePopover();
}
