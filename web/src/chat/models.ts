import { computed, signal } from "@preact/signals";
import { isAbort, messageOf } from "../api/client";
import { listModels, showModel } from "../api/models";
import type { ModelShow, ModelTag } from "../api/types";
import { defaultModel } from "../state/preferences";
import { route } from "../state/router";
import { stored } from "../state/stored";

/** Models that can chat, as the server listed them last; null before. */
export const models = signal<ModelTag[] | null>(null);
export const modelsError = signal<string | null>(null);

/** The model that was used last, for new chats. */
export const lastModel = stored("last-model", "", (value) => typeof value === "string");

const canChat = (model: ModelTag) =>
  model.capabilities === undefined || model.capabilities.includes("completion");

let loading: Promise<void> | null = null;

/** List the models anew. */
export function loadModels(): Promise<void> {
  loading ??= listModels()
    .then(
      (found) => {
        models.value = found.filter(canChat);
        modelsError.value = null;
      },
      (error: unknown) => {
        if (!isAbort(error)) modelsError.value = messageOf(error);
      },
    )
    .finally(() => {
      loading = null;
    });
  return loading;
}

/** The model that a new chat begins with, or "". */
export const firstModel = computed(() => {
  const names = models.value?.map((model) => model.name) ?? [];
  // "#/chat?model=NAME" is how other views begin a chat with a model.
  const { view, query } = route.value;
  const asked = view === "chat" ? (query.model ?? "") : "";
  for (const wanted of [asked, defaultModel.value, lastModel.value])
    if (names.includes(wanted)) return wanted;
  return names[0] ?? "";
});

/** Return a listed model by the name that a chat uses for it. */
export function modelNamed(name: string): ModelTag | undefined {
  const full = name.includes(":") ? name : `${name}:latest`;
  return models.value?.find((model) => model.name === name || model.name === full);
}

export const shortName = (name: string): string => name.replace(/:latest$/, "");

/** Whether a model has an ability; true while that is not known. */
export function has(name: string, ability: string): boolean {
  const abilities = modelNamed(name)?.capabilities;
  return abilities === undefined || abilities.length === 0 || abilities.includes(ability);
}

const shown = new Map<string, Promise<ModelShow>>();

/** Return what the server says about a model. */
export function about(name: string): Promise<ModelShow> {
  let answer = shown.get(name);
  if (answer === undefined) {
    answer = showModel(name);
    answer.catch(() => shown.delete(name));
    shown.set(name, answer);
  }
  return answer;
}

/** Read the parameters of a Modelfile, "temperature 0.6" a line. */
export function parametersIn(text: string | undefined): Map<string, string> {
  const found = new Map<string, string>();
  for (const line of (text ?? "").split("\n")) {
    const match = /^(\S+)\s+(.+)$/.exec(line.trim());
    if (match === null) continue;
    const [, name = "", value = ""] = match;
    const clear = value.trim().replace(/^"(.*)"$/, "$1");
    const before = found.get(name);
    found.set(name, before === undefined ? clear : `${before}, ${clear}`);
  }
  return found;
}
