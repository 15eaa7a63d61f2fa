/** Return the address of a link if the page may lead there, else null. */
export function safeAddress(href: string): string | null {
  // Browsers ignore control characters and spaces within a scheme.
  // biome-ignore lint/suspicious/noControlCharactersInRegex: what browsers ignore in addresses
  const address = href.replace(/[\u0000-\u0020\u007f-\u00a0\u200b-\u200f\u2028-\u202f\ufeff]+/g, "");
  if (/^(?:https?:\/\/|mailto:)/i.test(address)) return href.trim();
  if (/^www\./i.test(address)) return `https://${href.trim()}`;
  return null;
}

/** Whether the picture is in the address itself and of a type that runs nothing. */
export const isOwnPicture = (href: string): boolean =>
  /^data:image\/(?:png|jpeg|gif|webp|avif);base64,[A-Za-z0-9+/=\s]+$/.test(href);
