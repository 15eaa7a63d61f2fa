// Models being made: files are hashed and uploaded, then the server makes the model of them.
import { type Signal, signal } from "@preact/signals";
import { isAbort, messageOf } from "../api/client";
import { createModel, hasBlob, uploadBlob } from "../api/models";
import { digestOf } from "./hashing";
import { reload } from "./local";
import type { Recipe, RecipeBody } from "./recipe";
import { begun, ended, type Transfer, withProgress } from "./transfer";

/** A model being made, or made last; null before. */
export type Making = Signal<Transfer | null>;
export const making = (): Making => signal<Transfer | null>(null);

const endings = new WeakMap<Making, AbortController>();
export const stopMaking = (of: Making): void => endings.get(of)?.abort();

/** Make a model; returns whether that succeeded. `files` are the files that the recipe names. */
export async function make(
  of: Making,
  model: string,
  recipe: Pick<Recipe, "files" | "adapters"> & { body: RecipeBody },
  files: ReadonlyMap<string, File>,
): Promise<boolean> {
  const ending = new AbortController();
  endings.set(of, ending);
  of.value = begun(model);
  const hear = (status: string, done?: number, total?: number) => {
    of.value = withProgress(of.peek()!, { status, completed: done, total }, performance.now() / 1000);
  };
  const { signal: stopped } = ending;
  const sent = new Map<string, string>();
  const send = async (name: string): Promise<string> => {
    const known = sent.get(name);
    if (known !== undefined) return known;
    const file = files.get(name);
    if (file === undefined) throw new Error(`${name} was not added`);
    hear(`reading ${name}`, 0, file.size);
    const digest = await digestOf(file, (done) => hear(`reading ${name}`, done, file.size), stopped);
    if (!(await hasBlob(digest, stopped))) {
      await uploadBlob(digest, file, stopped, (done) => hear(`uploading ${name}`, done, file.size));
    }
    sent.set(name, digest);
    return digest;
  };
  const sendAll = async (names: Record<string, string>) => {
    const digests: Record<string, string> = {};
    for (const [inBody, name] of Object.entries(names)) digests[inBody] = await send(name);
    return Object.keys(digests).length > 0 ? digests : undefined;
  };
  try {
    const body = {
      ...recipe.body,
      files: await sendAll(recipe.files),
      adapters: await sendAll(recipe.adapters),
    };
    for await (const said of createModel({ model, ...body }, stopped)) {
      of.value = withProgress(of.peek()!, said, performance.now() / 1000);
    }
    await reload();
    if (of.peek()!.state === "done") return true;
    of.value = ended(of.peek()!, "failed", "The server stopped without saying why.");
  } catch (error) {
    const byHand = stopped.aborted || isAbort(error);
    of.value = ended(of.peek()!, byHand ? "stopped" : "failed", byHand ? null : messageOf(error));
  }
  return false;
}
