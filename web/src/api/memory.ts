import { client } from "./client";
import type { MemoryPlan } from "./types";

export const getMemory = (
  model: string,
  { num_ctx, parallel }: { num_ctx?: number; parallel?: number } = {},
  signal?: AbortSignal,
): Promise<MemoryPlan> => client.json("api/puna/memory", { query: { model, num_ctx, parallel }, signal });
