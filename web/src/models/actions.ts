import { client } from "../api/client";
import { copyModel, deleteModel, loadModel, unloadModel } from "../api/models";
import type { ModelTag } from "../api/types";
import { reasonAgainst } from "../shell/scoped_button";
import { navigate, route } from "../state/router";
import { askText, confirm } from "../ui/ask";
import { bytes } from "../ui/format";
import { Chat, Clock, Copy, Edit, Info, Pin, Sliders, Trash, Unload } from "../ui/icons";
import type { MenuEntry, MenuItem } from "../ui/menu";
import { toast, toastError } from "../ui/toast";
import { isSame, shortName } from "./list";
import { forgetNeeds, loadedAs, models, reload } from "./local";
import { quantising } from "./quantise_dialog";
import { nameProblem } from "./recipe";

type Known = Pick<ModelTag, "name"> & Partial<Pick<ModelTag, "capabilities" | "size">>;

/** How long models stay in memory without requests. */
export const KEEPING: readonly { label: string; keep: string | number; said: string }[] = [
  { label: "For 5 minutes", keep: "5m", said: "5 minutes without requests" },
  { label: "For an hour", keep: "1h", said: "an hour without requests" },
  { label: "Until it is unloaded", keep: -1, said: "as long as the server runs" },
];

/** Bring a model into memory, or have it stay longer. */
export async function load(model: Known, { keep, said }: (typeof KEEPING)[number]): Promise<void> {
  const before = loadedAs(model.name) !== undefined;
  const ending = new AbortController();
  const action = { label: "Cancel", run: () => ending.abort() };
  const closing = before ? null : toast({ text: `Loading ${shortName(model.name)}…`, seconds: 0, action });
  try {
    // Models that only make vectors are loaded by the route that asks for vectors.
    if (model.capabilities?.includes("completion") !== false)
      await loadModel(model.name, keep, undefined, ending.signal);
    else
      await client.run("api/embed", {
        json: { model: model.name, input: "", keep_alive: keep },
        signal: ending.signal,
      });
    closing?.();
    toast({
      kind: "success",
      text: `${shortName(model.name)} stays in memory for ${said}.`.replace("for as", "as"),
    });
  } catch (error) {
    closing?.();
    if (!ending.signal.aborted) toastError(error, `${shortName(model.name)} was not loaded`);
  }
  forgetNeeds();
  await reload();
}

export async function unload({ name }: Known): Promise<void> {
  try {
    await unloadModel(name);
    toast({ text: `Unloaded ${shortName(name)}` });
  } catch (error) {
    toastError(error, `${shortName(name)} was not unloaded`);
  }
  forgetNeeds();
  await reload();
}

export async function copy({ name }: Known): Promise<void> {
  const taken = (text: string) => (models.peek() ?? []).some((each) => isSame(each.name, text.trim()));
  const destination = await askText({
    title: `Copy ${shortName(name)}`,
    label: "Name of the copy",
    value: `${shortName(name).split(":")[0]}-copy`,
    action: "Copy",
    body: "The copy shares its files with the model, so it takes no room of its own.",
    check: (text) => nameProblem(text) ?? (taken(text) ? "There is a model of this name." : null),
  });
  if (destination === null) return;
  try {
    await copyModel(name, destination.trim());
    toast({ kind: "success", text: `Copied to ${destination.trim()}` });
  } catch (error) {
    toastError(error, "The model was not copied");
  }
  await reload();
}

export async function remove({ name, size }: Known): Promise<void> {
  const yes = await confirm({
    title: `Delete ${shortName(name)}?`,
    body:
      `Its files are removed from the server${size ? `, up to ${bytes(size)}` : ""}; those that other models use stay. ` +
      "This cannot be undone.",
    action: "Delete",
    danger: true,
  });
  if (!yes) return;
  try {
    await deleteModel(name);
    models.value = (models.peek() ?? []).filter((each) => each.name !== name);
    toast({ text: `Deleted ${shortName(name)}` });
    if (route.value.view === "models" && isSame(route.value.item ?? "", name))
      navigate("models", null, { replace: true });
  } catch (error) {
    toastError(error, "The model was not deleted");
  }
  await reload();
}

export const chatWith = ({ name }: Known): void => navigate("chat", null, { query: { model: name } });
export const createFrom = ({ name }: Known): void => navigate("models", null, { query: { create: name } });

/** An entry of a menu, which says why it cannot be used if a key does not allow it. */
function scoped(scope: "generate" | "manage", item: MenuItem): MenuItem {
  return reasonAgainst(scope) === null ? item : { ...item, disabled: true, hint: `needs “${scope}”` };
}

/** Return what can be done with a model. */
export function actionsOf(model: Known, { onPage = false } = {}): MenuEntry[] {
  const running = loadedAs(model.name);
  const inMemory = running !== undefined && running.loading === undefined;
  const canChat = model.capabilities === undefined || model.capabilities.includes("completion");
  const items: (MenuEntry | false)[] = [
    !onPage && { label: "Show", icon: Info, onSelect: () => navigate("models", model.name) },
    canChat && scoped("generate", { label: "Chat with it", icon: Chat, onSelect: () => chatWith(model) }),
    null,
    inMemory ? "Keep in memory" : "Load into memory",
    ...KEEPING.map((each) =>
      scoped("generate", {
        label: each.label,
        icon: each.keep === -1 ? Pin : Clock,
        onSelect: () => void load(model, each),
      }),
    ),
    inMemory && scoped("manage", { label: "Unload", icon: Unload, onSelect: () => void unload(model) }),
    null,
    scoped("manage", { label: "Create from it…", icon: Edit, onSelect: () => createFrom(model) }),
    scoped("manage", {
      label: "Quantise…",
      icon: Sliders,
      onSelect: () => {
        quantising.value = model.name;
      },
    }),
    scoped("manage", { label: "Copy…", icon: Copy, onSelect: () => void copy(model) }),
    null,
    scoped("manage", { label: "Delete…", icon: Trash, danger: true, onSelect: () => void remove(model) }),
  ];
  return items.filter((item) => item !== false);
}
