import { computed, signal } from "@preact/signals";
import { ApiError, client, isAbort, messageOf, NetworkError } from "../api/client";
import { getMe } from "../api/me";
import type { Me, Scope } from "../api/types";
import { readStored, writeStored } from "./stored";

const NAME = "puna.key";

/** The server's answer to who is here; null until it has answered. */
export const me = signal<Me | null>(null);
/** Whether a key is needed before anything else can be done. */
export const needsKey = signal(false);
/** Whether the last request reached the server. */
export const reachable = signal(true);
/** Why the page cannot start, if it cannot. */
export const startError = signal<string | null>(null);

/** Whether chats are kept on the server; otherwise they live in this tab. */
export const keepsHistory = computed(() => me.value?.history ?? false);

/** Whether the caller's key allows what the scope covers; without keys, everyone may do everything. */
export function can(scope: Scope): boolean {
  return me.value?.scopes.includes(scope) ?? false;
}

let polling: ReturnType<typeof setTimeout> | null = null;

/** Find the key of an earlier visit and ask the server who it belongs to. */
export async function startSession(): Promise<void> {
  client.watch({
    onUnauthorized: () => {
      needsKey.value = true;
    },
    onReachable: (now) => {
      reachable.value = now;
      if (!now) poll(1);
    },
  });
  client.useKey(readStored(() => sessionStorage, NAME) ?? readStored(() => localStorage, NAME));
  await refresh();
}

/** Ask the server who is here. */
export async function refresh(): Promise<void> {
  try {
    me.value = await getMe();
    needsKey.value = false;
    startError.value = null;
  } catch (error) {
    if (error instanceof ApiError && error.isUnauthorized) return; // `onUnauthorized` has asked for a key
    if (error instanceof ApiError && error.isForbidden) {
      needsKey.value = true;
      return;
    }
    if (isAbort(error)) return;
    startError.value = messageOf(error);
  }
}

/** Sign in with a key. Raises `ApiError` or `NetworkError` if the server does not take it. */
export async function signIn(key: string, remember: boolean): Promise<void> {
  client.useKey(key);
  const before = me.peek();
  let now: Me;
  try {
    now = await getMe();
  } catch (error) {
    client.useKey(null);
    throw error;
  }
  writeStored(() => sessionStorage, NAME, key);
  writeStored(() => localStorage, NAME, remember ? key : null);
  if (before !== null && before.name !== now.name) {
    // Nothing that belongs to somebody else's key may stay on the page.
    location.reload();
    return;
  }
  me.value = now;
  startError.value = null;
  needsKey.value = false;
}

export function signOut(): void {
  client.useKey(null);
  writeStored(() => sessionStorage, NAME, null);
  writeStored(() => localStorage, NAME, null);
  // Nothing of the one who signed out may stay on the page, in memory or in a view's state.
  location.hash = "";
  location.reload();
}

/** Ask a server that is gone again and again, ever more rarely, until it answers. */
function poll(attempt: number): void {
  if (polling !== null) return;
  polling = setTimeout(
    async () => {
      polling = null;
      try {
        me.value = await getMe();
        startError.value = null;
      } catch (error) {
        if (error instanceof NetworkError) poll(attempt + 1);
      }
    },
    Math.min(8000, 1000 * 1.5 ** (attempt - 1)),
  );
}
