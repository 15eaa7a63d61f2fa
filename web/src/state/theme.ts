import { computed, effect, signal } from "@preact/signals";
import { textSize, themeChoice } from "./preferences";

const dark = matchMedia("(prefers-color-scheme: dark)");
const prefersDark = signal(dark.matches);
dark.addEventListener("change", () => {
  prefersDark.value = dark.matches;
});

/** The theme in use. Drawings on a canvas depend on it, styles on `data-theme`. */
export const theme = computed<"light" | "dark">(() => {
  const choice = themeChoice.value;
  return choice === "system" ? (prefersDark.value ? "dark" : "light") : choice;
});

/** Return the value of a custom property such as "--line" in the theme in use. */
export function token(name: string): string {
  void theme.value;
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function applyAppearance(): void {
  const bar = document.createElement("meta"); // the browser's own bar, on telephones
  bar.name = "theme-color";
  document.head.append(bar);
  effect(() => {
    document.documentElement.dataset.theme = theme.value;
    document.documentElement.dataset.textSize = textSize.value;
    bar.content = token("--canvas");
  });
}
