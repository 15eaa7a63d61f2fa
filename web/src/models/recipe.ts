// Makes the body of /api/create of a Modelfile and the files that were added to it.
import type { CreateModel } from "../api/types";
import { type Command, type Modelfile, nearest, type Problem } from "./modelfile";
import { DEPRECATED, PARAMETERS, parameterValue } from "./parameters";

/** A body of /api/create without the digests of files, which are known once the files were read. */
export type RecipeBody = Omit<CreateModel, "model" | "files" | "adapters">;

export interface Recipe {
  body: RecipeBody;
  /** Names in the body, and the files that belong there, by their own names. */
  files: Record<string, string>;
  adapters: Record<string, string>;
  problems: Problem[];
}

const PATHS = ["./", "../", "/", "~", ".\\"];
const PEFT = ["adapter_config.json", "adapter_model.safetensors"];
const SEMVER = /^v?\d+(\.\d+){0,2}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$/;

const baseName = (path: string) =>
  path
    .replace(/[\\/]+$/, "")
    .split(/[\\/]/)
    .pop() ?? "";
const isPath = (value: string) =>
  PATHS.some((each) => `${value}/`.startsWith(each)) || /\.(gguf|safetensors)$/i.test(value);

/** Return what a Modelfile asks for; `added` are the names of the files that were added. */
export function recipeOf(modelfile: Modelfile, added: readonly string[]): Recipe {
  const recipe: Recipe = { body: {}, files: {}, adapters: {}, problems: [...modelfile.problems] };
  const taken = new Set<string>();
  for (const command of modelfile.commands) {
    const problem = take(recipe, command, added, taken);
    if (problem !== null) recipe.problems.push({ line: command.line, message: problem });
  }
  for (const name of added) {
    if (taken.has(name)) continue;
    const word = PEFT.includes(name) ? "ADAPTER ./NAME" : `FROM ./${name}`;
    recipe.problems.push({
      line: 1,
      message: `${name} is not used: add a line such as ${word}`,
      warning: true,
    });
  }
  recipe.problems.sort((a, b) => a.line - b.line);
  return recipe;
}

/** Add a command to the recipe; return what is wrong with it, or null. */
function take(recipe: Recipe, command: Command, added: readonly string[], taken: Set<string>): string | null {
  const { body } = recipe;
  const { name, key, value } = command;
  switch (name) {
    case "from":
      return takeSource(recipe, value, added, taken);
    case "adapter":
      return takeAdapter(recipe, value, added, taken);
    case "parameter":
      return takeParameter(recipe, command);
    case "message":
      body.messages = [...(body.messages ?? []), { role: key, content: value }];
      return null;
    case "license":
      body.license = [...((body.license as string[] | undefined) ?? []), value];
      return null;
    case "requires":
      if (!SEMVER.test(value)) return "REQUIRES takes a version such as 0.14.0";
      body.requires = value.replace(/^v/, "");
      return null;
    case "draft":
      return "DRAFT is not supported; PARAMETER draft names a model that drafts";
    default:
      body[name] = value;
      return null;
  }
}

function takeSource(
  recipe: Recipe,
  value: string,
  added: readonly string[],
  taken: Set<string>,
): string | null {
  if (value === "") return "FROM needs the name of a model, or a file";
  const file = baseName(value);
  if (added.includes(file)) {
    taken.add(file);
    recipe.files[file] = file;
    // The parts of a split file belong together.
    const split = /^(.*)-\d{5}(-of-\d{5}\.gguf)$/.exec(file);
    for (const each of added) {
      const other = split && /^(.*)-\d{5}(-of-\d{5}\.gguf)$/.exec(each);
      if (split && other && other[1] === split[1] && other[2] === split[2]) {
        taken.add(each);
        recipe.files[each] = each;
      }
    }
    return null;
  }
  if (isPath(value) || value === ".") {
    const parts = added.filter((each) => !/\.gguf$/i.test(each) && !PEFT.includes(each));
    if (!/\.(gguf|safetensors)$/i.test(value) && parts.some((each) => each.endsWith(".safetensors"))) {
      for (const each of parts) {
        taken.add(each);
        recipe.files[each] = each;
      }
      return null;
    }
    return `${value}: add this file; the server does not read paths`;
  }
  if (recipe.body.from !== undefined)
    return `There are two models, ${recipe.body.from} and ${value}: name one`;
  recipe.body.from = value;
  return null;
}

function takeAdapter(
  recipe: Recipe,
  value: string,
  added: readonly string[],
  taken: Set<string>,
): string | null {
  const { path, scale } = scaled(value, added);
  const name = baseName(path);
  if (Number.isNaN(scale) || Math.abs(scale) > 1e4)
    return `${value}: a scale lies between −10,000 and 10,000`;
  const names = added.includes(name) ? [name] : PEFT.every((each) => added.includes(each)) ? PEFT : [];
  if (names.length === 0) {
    return /\.gguf$/i.test(name)
      ? `${name}: add this file`
      : `${value}: add ${name || "the adapter"}.gguf, or ${PEFT.join(" and ")} as PEFT saves them`;
  }
  for (const each of names) {
    const inBody = names.length > 1 ? `${name || "adapter"}/${each}` : each;
    if (recipe.adapters[inBody] !== undefined) return `There is another adapter called ${name}: rename one`;
    taken.add(each);
    recipe.adapters[inBody] = each;
  }
  if (scale !== 1) recipe.body.adapter_scales = { ...recipe.body.adapter_scales, [name || "adapter"]: scale };
  return null;
}

function scaled(value: string, added: readonly string[]): { path: string; scale: number } {
  const found = /^(.*\S)\s+([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)$/.exec(value);
  if (found === null || added.includes(baseName(value))) return { path: value, scale: 1 };
  return { path: found[1]!, scale: Number(found[2]) };
}

function takeParameter(recipe: Recipe, { key, value, line }: Command): string | null {
  if (DEPRECATED.includes(key)) {
    recipe.problems.push({
      line,
      message: `${key} belongs to older versions and changes nothing`,
      warning: true,
    });
    return null;
  }
  const kind = PARAMETERS[key];
  if (kind === undefined) {
    const meant = nearest(key, Object.keys(PARAMETERS));
    return `There is no parameter ${key}${meant ? `; ${meant} is one` : ""}`;
  }
  const read = parameterValue(kind, value);
  if (read === undefined) return `${key} takes ${KINDS[kind]}, not ${value.slice(0, 60)}`;
  const parameters = recipe.body.parameters ?? {};
  recipe.body.parameters = parameters;
  if (kind === "texts") parameters[key] = [...((parameters[key] as string[] | undefined) ?? []), read];
  else parameters[key] = read;
  return null;
}

const KINDS = {
  whole: "a whole number",
  number: "a number",
  "yes or no": "true or false",
  text: "a text",
  texts: "a text",
} as const;

/** Return the Modelfile to begin with for a model made of another: its own, with FROM that model. */
export function startingFrom(modelfile: string, name: string): string {
  let replaced = false;
  const lines: string[] = [];
  for (const line of modelfile.split("\n")) {
    if (/^#/.test(line) && !replaced) continue;
    if (/^(FROM|ADAPTER)\s/i.test(line)) {
      // The model brings its files, projectors and adapters itself.
      if (!replaced) lines.push(`FROM ${name}`);
      replaced = true;
    } else lines.push(line);
  }
  return `${(replaced ? lines : [`FROM ${name}`, ...lines]).join("\n").trim()}\n`;
}

/** Return what is wrong with a model's name, or null. */
export function nameProblem(name: string): string | null {
  const text = name.trim();
  if (text === "") return "The model needs a name.";
  if (text.length > 250) return "The name is too long.";
  if (!/^[\w.:/@-]+$/.test(text)) return "A name has letters, digits, and . _ - : / only.";
  if (/^[^\w]|[:/.]$|\/\/|::/.test(text)) return "This is no name of a model.";
  return null;
}
