// Pulls go on while other views are shown; what was stopped can be resumed, also after the page was reloaded.
import { signal } from "@preact/signals";
import { isAbort, messageOf } from "../api/client";
import { pullModel } from "../api/models";
import { readStored, writeStored } from "../state/stored";
import { isSame } from "./list";
import { reload } from "./local";
import { begun, ended, type Transfer, withProgress } from "./transfer";

const KEY = "puna.pulls";
const endings = new Map<string, AbortController>();

export const pulls = signal<Transfer[]>(unfinished());

function unfinished(): Transfer[] {
  try {
    const names: unknown = JSON.parse(readStored(() => sessionStorage, KEY) ?? "[]");
    if (!Array.isArray(names)) return [];
    return names.map((name) => ended({ ...begun(String(name)), status: "interrupted" }, "stopped", null));
  } catch {
    return [];
  }
}

pulls.subscribe((now) => {
  const names = now.filter(({ state }) => state !== "done").map(({ name }) => name);
  writeStored(() => sessionStorage, KEY, names.length > 0 ? JSON.stringify(names) : null);
});

function change(name: string, how: (pull: Transfer) => Transfer): void {
  pulls.value = pulls.peek().map((pull) => (pull.name === name ? how(pull) : pull));
}

/** Pull a model, or go on with a pull that ended before it was done. */
export async function startPull(name: string): Promise<void> {
  const known = pulls.peek().find((pull) => isSame(pull.name, name));
  if (known?.state === "running") return;
  const fresh = { ...begun(name), parts: known?.parts ?? [] };
  pulls.value = [fresh, ...pulls.peek().filter((pull) => pull !== known)];
  const ending = new AbortController();
  endings.set(name, ending);
  try {
    for await (const said of pullModel(name, ending.signal)) {
      change(name, (pull) => withProgress(pull, said, performance.now() / 1000));
    }
    change(name, (pull) =>
      pull.state === "running" ? ended(pull, "failed", "The server stopped without saying why.") : pull,
    );
    await reload();
  } catch (error) {
    const stopped = ending.signal.aborted || isAbort(error);
    change(name, (pull) => ended(pull, stopped ? "stopped" : "failed", stopped ? null : messageOf(error)));
  } finally {
    endings.delete(name);
  }
}

export const stopPull = (name: string): void => endings.get(name)?.abort();

export function dismissPull(name: string): void {
  stopPull(name);
  pulls.value = pulls.peek().filter((pull) => pull.name !== name);
}
