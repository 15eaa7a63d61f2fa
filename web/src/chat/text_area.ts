/** Make a text area as high as its text; its style says how high at most. */
export function fitHeight(area: HTMLTextAreaElement): void {
  // Browsers that know field-sizing do this themselves.
  if (CSS.supports("field-sizing", "content")) return;
  area.style.blockSize = "auto";
  area.style.blockSize = `${area.scrollHeight + 2}px`;
}
