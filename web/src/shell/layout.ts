import { signal } from "@preact/signals";
import { sidebarOpen } from "../state/preferences";

const narrow = matchMedia("(max-width: 48rem)");

/** Whether the sidebar lies over the view instead of beside it. */
export const isNarrow = signal(narrow.matches);
narrow.addEventListener("change", () => {
  isNarrow.value = narrow.matches;
  sidebarDrawn.value = false;
});

/** Whether the sidebar lies over the view now. */
export const sidebarDrawn = signal(false);

export function toggleSidebar(): void {
  if (isNarrow.value) sidebarDrawn.value = !sidebarDrawn.value;
  else sidebarOpen.value = !sidebarOpen.value;
}

/** Uncover the view, after something was chosen in the sidebar. */
export function uncover(): void {
  sidebarDrawn.value = false;
}
