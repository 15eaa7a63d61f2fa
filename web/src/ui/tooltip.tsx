import { useEffect, useRef } from "preact/hooks";
import { keyNames } from "../state/shortcuts";
import { hide, showBeside } from "./layer";

const DELAY_MS = 450;

/**
 * The one tooltip of the page: put `data-tip="text"` on an element, and `data-keys="mod+k"` if it has a shortcut.
 *
 * It repeats names and adds what is nice to know; nothing is told by a tooltip alone. Screen readers hear it as the
 * description of the element that it belongs to, and do not find it on its own.
 */
export function TooltipHost() {
  const layer = useRef<HTMLDivElement>(null);

  useEffect(() => {
    const element = layer.current;
    if (element === null) return;
    let owner: HTMLElement | null = null;
    let timer = 0;
    let lastHidden = 0;

    const leave = () => {
      clearTimeout(timer);
      if (owner?.getAttribute("aria-describedby") === element.id) owner.removeAttribute("aria-describedby");
      if (owner !== null && element.matches(":popover-open")) lastHidden = performance.now();
      owner = null;
      hide(element);
    };
    const show = () => {
      if (owner === null || !owner.isConnected) return;
      element.replaceChildren(owner.dataset.tip ?? "");
      for (const name of owner.dataset.keys ? keyNames(owner.dataset.keys) : []) {
        const key = document.createElement("kbd");
        key.textContent = name;
        element.append(key);
      }
      const repeatsName = owner.dataset.tip === owner.getAttribute("aria-label");
      if (!repeatsName && !owner.hasAttribute("aria-describedby"))
        owner.setAttribute("aria-describedby", element.id);
      showBeside(element, owner, { align: "center" });
    };
    const enter = (target: EventTarget | null, delay: number) => {
      const next = target instanceof Element ? target.closest<HTMLElement>("[data-tip]") : null;
      if (next === owner) return;
      leave();
      owner = next;
      if (next === null || next.getAttribute("aria-expanded") === "true") return;
      timer = window.setTimeout(show, performance.now() - lastHidden < 300 ? 0 : delay);
    };
    const onOver = (event: PointerEvent) => {
      if (event.pointerType === "mouse") enter(event.target, DELAY_MS);
    };
    const onFocus = (event: FocusEvent) => {
      if (event.target instanceof Element && event.target.matches(":focus-visible"))
        enter(event.target, DELAY_MS);
    };
    const onKey = (event: KeyboardEvent) => {
      if (event.key === "Escape") leave();
    };
    document.addEventListener("pointerover", onOver);
    document.addEventListener("focusin", onFocus);
    document.addEventListener("focusout", leave);
    document.addEventListener("pointerdown", leave);
    document.addEventListener("keydown", onKey, true);
    document.addEventListener("scroll", leave, true);
    return () => {
      leave();
      document.removeEventListener("pointerover", onOver);
      document.removeEventListener("focusin", onFocus);
      document.removeEventListener("focusout", leave);
      document.removeEventListener("pointerdown", leave);
      document.removeEventListener("keydown", onKey, true);
      document.removeEventListener("scroll", leave, true);
    };
  }, []);

  return <div ref={layer} id="tooltip" class="tooltip" popover="manual" role="tooltip" aria-hidden="true" />;
}
