import { client } from "./client";
import { events } from "./event_stream";
import type { NewRun, RunEvent, RunHead, StartedRun } from "./types";

export const startRun = (run: NewRun, signal?: AbortSignal): Promise<StartedRun> =>
  client.json("api/puna/runs", { json: run, signal });

export async function listRuns(signal?: AbortSignal): Promise<RunHead[]> {
  return (await client.json<{ runs: RunHead[] }>("api/puna/runs", { signal })).runs;
}

/** Stop a run; what it has said is kept. */
export const stopRun = (id: string): Promise<void> => client.run(`api/puna/runs/${id}`, { method: "DELETE" });

/** Yield the events of a run until its end, resumed whenever the connection breaks. */
export async function* runEvents(
  id: string,
  options: { signal?: AbortSignal; after?: string; onConnection?: (attempt: number) => void } = {},
): AsyncGenerator<RunEvent> {
  const isLast = ({ event }: { event: string }) => event === "end";
  for await (const { event, data } of events(`api/puna/runs/${id}/events`, { ...options, isLast })) {
    yield { ...JSON.parse(data), event } as RunEvent;
  }
}
