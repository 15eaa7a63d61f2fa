import { events } from "./event_stream";
import type { Live } from "./types";

/** Yield the state of the engine twice a second, connected again whenever the connection breaks. */
export async function* live(
  signal: AbortSignal,
  onConnection?: (attempt: number) => void,
): AsyncGenerator<Live> {
  for await (const event of events("api/puna/live", { signal, onConnection })) {
    yield JSON.parse(event.data) as Live;
  }
}
