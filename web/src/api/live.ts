import { events } from "./event_stream";
import type { Live } from "./types";

/** Yield the state of the engine twice a second, of a certain replica if it is named.
 *
 * It connects again whenever the connection breaks.
 */
export async function* live(
  signal: AbortSignal,
  replica: string,
  onConnection?: (attempt: number) => void,
): AsyncGenerator<Live> {
  const query = replica === "" ? "" : `?replica=${encodeURIComponent(replica)}`;
  for await (const event of events(`api/puna/live${query}`, { signal, onConnection })) {
    yield JSON.parse(event.data) as Live;
  }
}
