import { useSignal } from "@preact/signals";
import type { RefObject } from "preact";
import { useEffect, useLayoutEffect } from "preact/hooks";

/** Return the width of an element in pixels, kept up to date; 0 before it is laid out. */
export function useWidth(element: RefObject<HTMLElement | null>): number {
  const width = useSignal(0);
  useLayoutEffect(() => {
    const node = element.current;
    if (node === null) return;
    width.value = node.clientWidth;
    const watcher = new ResizeObserver(() => {
      width.value = node.clientWidth;
    });
    watcher.observe(node);
    return () => watcher.disconnect();
  }, []);
  return width.value;
}

/** Paint a canvas of this size, in CSS pixels, whenever something in `depends` has changed. */
export function usePainting(
  canvas: RefObject<HTMLCanvasElement | null>,
  width: number,
  height: number,
  paint: (context: CanvasRenderingContext2D) => void,
  depends: unknown[],
): void {
  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context || width === 0) return;
    const ratio = devicePixelRatio || 1;
    const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (element.width !== across) element.width = across;
    if (element.height !== down) element.height = down;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    paint(context);
  }, [width, height, ...depends]);
}
