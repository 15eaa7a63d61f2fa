import { signal } from "@preact/signals";

/** The time in seconds, renewed every half minute, for texts such as "5 minutes ago". */
export const now = signal(Date.now() / 1000);

setInterval(() => {
  if (!document.hidden) now.value = Date.now() / 1000;
}, 30_000);
