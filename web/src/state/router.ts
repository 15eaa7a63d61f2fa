import { signal } from "@preact/signals";
import { hashOf, parseRoute, type Route, type ViewName } from "./route";

export const route = signal<Route>(parseRoute(location.hash));

addEventListener("hashchange", () => {
  route.value = parseRoute(location.hash);
});

/** Show a view. With `replace`, "back" does not return to the one that is shown now. */
export function navigate(
  view: ViewName,
  item?: string | null,
  { replace = false, query = {} }: { replace?: boolean; query?: Record<string, string> } = {},
): void {
  const hash = hashOf(view, item, query);
  if (hash === location.hash) return;
  if (replace) {
    history.replaceState(null, "", hash);
    route.value = parseRoute(hash);
  } else location.hash = hash;
}
