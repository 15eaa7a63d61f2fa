/** Join the names of classes; what is false or empty is left out. */
export function classes(...names: (string | false | null | undefined)[]): string {
  return names.filter(Boolean).join(" ");
}

let last = 0;

/** Return an id that no other element has. */
export const newId = (prefix: string): string => `${prefix}-${++last}`;
