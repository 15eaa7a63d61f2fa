import { useLayoutEffect } from "preact/hooks";

export interface Shortcut {
  /** "mod" is Ctrl, or Command on a Mac: "mod+shift+o", "?", "escape". */
  keys: string;
  label: string;
  group: string;
  /** Returns false if the key meant nothing now, so that the browser takes it. */
  run: () => unknown;
  /** Whether it also works while someone types. Combinations with mod always do. */
  whileTyping?: boolean;
}

export const isMac = /Mac|iP(hone|ad|od)/.test(globalThis.navigator?.platform ?? "");

const registered = new Set<Shortcut>();

/** The shortcuts that work now, for the list of them. */
export const shortcuts = (): Shortcut[] => [...registered];

export function useShortcut(shortcut: Shortcut, active = true): void {
  // What is on the screen answers to its keys at once, not some frames later.
  useLayoutEffect(() => {
    if (!active) return;
    registered.add(shortcut);
    return () => void registered.delete(shortcut);
  }, [active, shortcut.keys, shortcut.label, shortcut.run]);
}

/** Return the name of a pressed key in the words of `Shortcut.keys`. */
export function pressed(
  event: Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "altKey" | "shiftKey">,
  mac = isMac,
): string {
  const key = event.key.toLowerCase();
  const parts = [];
  if (mac ? event.metaKey : event.ctrlKey) parts.push("mod");
  if (event.altKey) parts.push("alt");
  // The shift that makes "?" of "/" is part of the character.
  if (event.shiftKey && (key.length > 1 || /[a-z]/.test(key))) parts.push("shift");
  return [...parts, key === " " ? "space" : key].join("+");
}

/** Return the parts of a shortcut as they stand on the keys. */
export function keyNames(keys: string, mac = isMac): string[] {
  const names: Record<string, string> = {
    mod: mac ? "⌘" : "Ctrl",
    alt: mac ? "⌥" : "Alt",
    shift: mac ? "⇧" : "Shift",
    escape: "Esc",
    enter: "Enter",
    delete: mac ? "⌦" : "Del",
    arrowup: "↑",
    arrowdown: "↓",
    arrowleft: "←",
    arrowright: "→",
  };
  return keys
    .split("+")
    .map((part) => names[part] ?? (part.length === 1 || /^f\d+$/.test(part) ? part.toUpperCase() : part));
}

function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
}

export function listenForShortcuts(): void {
  addEventListener("keydown", (event) => {
    // Enter and Escape of an input method choose or drop what it proposes.
    if (event.defaultPrevented || event.isComposing || event.keyCode === 229) return;
    const keys = pressed(event);
    const typing = isTyping(event.target);
    // A dialog is a world of its own.
    if (document.querySelector("dialog[open]") !== null) return;
    for (const shortcut of [...registered].reverse()) {
      if (shortcut.keys !== keys) continue;
      if (typing && !shortcut.whileTyping && !keys.startsWith("mod+")) continue;
      if (shortcut.run() === false) continue;
      event.preventDefault();
      return;
    }
  });
}
