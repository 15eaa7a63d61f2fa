// The engine's state as it is told twice a second, and what it came to over the last minutes.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { messageOf } from "../api/client";
import { live } from "../api/live";
import type { Live } from "../api/types";
import { type Histories, withGap, withState } from "./history";

export type Connection = "connecting" | "open" | "broken" | "failed";

export const engine = signal<Live | null>(null);
export const histories = signal<Histories>({});
export const connection = signal<Connection>("connecting");
/** Why the server refuses to tell, if it does. */
export const refusal = signal<string | null>(null);
export const paused = signal(false);
/** The name of the replica to follow; "": any. */
export const replica = signal("");

/** Follow the engine while the component is shown, the page is visible and nothing is paused. */
export function useFeed(): void {
  useEffect(() => {
    let ending: AbortController | null = null;
    let followed = replica.peek();
    const settle = () => {
      const wanted = document.visibilityState === "visible" && !paused.peek();
      if (ending !== null && followed !== replica.peek()) {
        ending.abort();
        ending = null;
      }
      if (wanted && ending === null) {
        followed = replica.peek();
        ending = new AbortController();
        void follow(ending.signal);
      } else if (!wanted && ending !== null) {
        ending.abort();
        ending = null;
        histories.value = withGap(histories.peek());
      }
    };
    document.addEventListener("visibilitychange", settle);
    const unsubscribe = [paused.subscribe(settle), replica.subscribe(settle)];
    return () => {
      document.removeEventListener("visibilitychange", settle);
      for (const end of unsubscribe) end();
      ending?.abort();
      histories.value = withGap(histories.peek());
    };
  }, []);
}

async function follow(signal: AbortSignal): Promise<void> {
  connection.value = "connecting";
  refusal.value = null;
  const onConnection = (attempt: number) => {
    if (!signal.aborted) connection.value = attempt === 0 ? "open" : "broken";
  };
  try {
    for await (const state of live(signal, replica.peek(), onConnection)) {
      if (signal.aborted) return;
      engine.value = state;
      histories.value = withState(histories.peek(), state);
    }
  } catch (error) {
    if (signal.aborted) return;
    connection.value = "failed";
    refusal.value = messageOf(error);
  }
}
