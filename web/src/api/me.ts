import { client } from "./client";
import type { Me } from "./types";

export const getMe = (signal?: AbortSignal): Promise<Me> => client.json<Me>("api/puna/me", { signal });
