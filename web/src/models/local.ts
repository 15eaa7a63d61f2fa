// The models of the server, those in memory, and what each would need.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { isAbort, messageOf } from "../api/client";
import { getMemory } from "../api/memory";
import { listModels, running } from "../api/models";
import type { MemoryPlan, ModelTag, RunningModel } from "../api/types";
import { isSame } from "./list";

/** Models as the server listed them last; null before. */
export const models = signal<ModelTag[] | null>(null);
export const listError = signal<string | null>(null);
export const loaded = signal<RunningModel[]>([]);

const EVERY_MS = 3000;

/** List the models anew. */
export async function reload(): Promise<void> {
  try {
    const [listed, inMemory] = await Promise.all([listModels(), running()]);
    models.value = listed;
    loaded.value = inMemory.models;
    listError.value = null;
  } catch (error) {
    if (!isAbort(error)) listError.value = messageOf(error);
  }
}

/** Follow what is in memory, and what there is, while the page is visible: others load and pull models, too. */
export function useModels(): void {
  useEffect(() => {
    let turn = 0;
    void reload();
    const timer = setInterval(async () => {
      if (document.hidden) return;
      turn += 1;
      if (turn % 5 === 0) return reload();
      try {
        loaded.value = (await running()).models;
      } catch {
        // The shell says that the server cannot be reached.
      }
    }, EVERY_MS);
    const onShown = () => {
      if (!document.hidden) void reload();
    };
    document.addEventListener("visibilitychange", onShown);
    return () => {
      clearInterval(timer);
      document.removeEventListener("visibilitychange", onShown);
    };
  }, []);
}

export const loadedAs = (name: string): RunningModel | undefined =>
  loaded.value.find((each) => isSame(each.name, name));

/** What a model would need, or why that cannot be told. */
export type Need = { plan: MemoryPlan } | { error: string };

/** By digest, as far as they were asked for. */
export const needs = signal<Readonly<Record<string, Need>>>({});
const asked = new Set<string>();
let queue: Promise<void> = Promise.resolve();

/** Find out what a model needs, after those asked for before: the server reads its file for that. */
export function askNeed({ digest }: ModelTag): void {
  if (asked.has(digest)) return;
  asked.add(digest);
  queue = queue.then(async () => {
    // Whoever asked may have been deleted meanwhile; a copy needs the same.
    const model = models.peek()?.find((each) => each.digest === digest);
    if (model === undefined) {
      asked.delete(digest);
      return;
    }
    let need: Need;
    try {
      need = { plan: await getMemory(model.name) };
    } catch (error) {
      need = { error: messageOf(error) };
    }
    needs.value = { ...needs.peek(), [digest]: need };
  });
}

/** Forget what was found out: there is another amount of memory left after models came and went. */
export function forgetNeeds(): void {
  asked.clear();
  needs.value = {};
}
