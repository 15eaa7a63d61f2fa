/** Copy a text, also on pages without TLS, where browsers have no clipboard for scripts. */
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard !== undefined) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "visually-hidden";
  // Within a dialog, nothing outside of it can be selected.
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  const before = document.activeElement;
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (before instanceof HTMLElement) before.focus({ preventScroll: true });
  if (!copied) throw new Error("The browser does not allow it.");
}
