import { type Signal, signal } from "@preact/signals";

/** Storage that may be forbidden or full: then values live as long as the page. */
export function readStored(storage: () => Storage, name: string): string | null {
  try {
    return storage().getItem(name);
  } catch {
    return null;
  }
}

export function writeStored(storage: () => Storage, name: string, value: string | null): void {
  try {
    if (value === null) storage().removeItem(name);
    else storage().setItem(name, value);
  } catch {
    // Nothing is lost but that the next visit does not know it.
  }
}

/** A signal that localStorage keeps and other tabs see. A value that `isValid` refuses is replaced by `initial`. */
export function stored<T>(name: string, initial: T, isValid: (value: unknown) => boolean): Signal<T> {
  const key = `puna.${name}`;
  const parse = (text: string | null): T => {
    if (text === null) return initial;
    try {
      const value: unknown = JSON.parse(text);
      return isValid(value) ? (value as T) : initial;
    } catch {
      return initial;
    }
  };
  const value = signal<T>(parse(readStored(() => localStorage, key)));
  let kept = JSON.stringify(value.peek());
  value.subscribe((now) => {
    const text = JSON.stringify(now);
    if (text === kept) return;
    kept = text;
    writeStored(() => localStorage, key, text);
  });
  globalThis.addEventListener?.("storage", (event) => {
    if (event.key !== key) return;
    const now = parse(event.newValue);
    kept = JSON.stringify(now);
    value.value = now;
  });
  return value;
}
