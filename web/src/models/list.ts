import type { MemoryPlan, ModelTag } from "../api/types";
import { bytes, count, percent, plural } from "../ui/format";

export type SortBy = "name" | "size" | "parameters" | "context" | "modified";
export interface Order {
  by: SortBy;
  descending: boolean;
}

/** Return the models that every word of a query is found in: in names, types, families, abilities. */
export function matching(models: readonly ModelTag[], query: string): ModelTag[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return [...models];
  return models.filter(({ name, details, capabilities }) => {
    const text = [
      name,
      details.quantization_level,
      details.parameter_size,
      details.family,
      ...(details.families ?? []),
      ...(capabilities ?? []),
    ]
      .join(" ")
      .toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

const names = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

// "demo" comes before "demo-large", which the tag of both would not let it.
const byName = (a: ModelTag, b: ModelTag) => names.compare(shortName(a.name), shortName(b.name));

export function sorted(models: readonly ModelTag[], { by, descending }: Order): ModelTag[] {
  const value: Record<Exclude<SortBy, "name">, (model: ModelTag) => number> = {
    size: ({ size }) => size,
    parameters: ({ details }) => parameterCount(details.parameter_size),
    context: ({ details }) => details.context_length ?? 0,
    modified: ({ modified_at }) => Date.parse(modified_at) || 0,
  };
  const compare = (a: ModelTag, b: ModelTag) => (by === "name" ? byName(a, b) : value[by](a) - value[by](b));
  const sign = descending ? -1 : 1;
  return [...models].sort((a, b) => sign * compare(a, b) || byName(a, b));
}

/** Return the number in "7.6B", "890K"; 0 if there is none. */
export function parameterCount(text: string | undefined): number {
  const found = /^([\d.]+)\s*([KMBT]?)/i.exec(text ?? "");
  if (found === null) return 0;
  const unit = { "": 1, K: 1e3, M: 1e6, B: 1e9, T: 1e12 }[found[2]!.toUpperCase()] ?? 1;
  return Number(found[1]) * unit;
}

/** Return a model's name without the tag that everything has. */
export const shortName = (name: string): string => name.replace(/:latest$/, "");

/** Return whether two names mean the same model. */
export const isSame = (a: string, b: string): boolean =>
  shortName(a).toLowerCase() === shortName(b).toLowerCase();

export interface Verdict {
  kind: "fits" | "tight" | "too large";
  label: string;
  about: string;
}

/** Above this share of what is left, other programs may get into trouble. */
const TIGHT = 0.85;

/** Return whether a model fits the memory that is left, and why. */
export function verdictOf({ total, available, fits, context, parallel }: MemoryPlan): Verdict {
  const need =
    `It takes ${bytes(total)} for ${plural(parallel, "sequence")} of ${plural(context, "token")}; ` +
    `${bytes(available)} ${available === 1 ? "is" : "are"} left`;
  if (!fits) {
    return {
      kind: "too large",
      label: "Too large",
      about: `${need}. Unload other models, choose a smaller context, or a smaller type.`,
    };
  }
  const share = available > 0 ? total / available : 1;
  if (share > TIGHT) return { kind: "tight", label: "Tight", about: `${need}: ${percent(share)} of it.` };
  return { kind: "fits", label: "Fits", about: `${need}.` };
}

export const ABILITIES: Readonly<Record<string, string>> = {
  completion: "writes text",
  tools: "calls tools",
  vision: "reads pictures",
  thinking: "thinks before it answers",
  insert: "fills gaps in text",
  embedding: "makes vectors of texts",
  rerank: "ranks texts",
  audio: "hears",
};

/** Return the values of a tensor. */
export const valuesOf = (shape: readonly number[]): number =>
  shape.reduce((product, size) => product * size, 1);

export const shapeText = (shape: readonly number[]): string => shape.map(count).join(" × ");
