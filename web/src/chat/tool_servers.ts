// The MCP servers that chats may use, and the tools of those that one uses.
import { signal } from "@preact/signals";
import { listToolServers, offeredTools } from "../api/mcp";
import type { OfferedTool, OfferedTools, ToolServer } from "../api/types";

/** The servers that are configured; null until they are known. */
export const toolServers = signal<readonly ToolServer[] | null>(null);

/** Raises `ApiError` or `NetworkError`. */
export async function loadToolServers(): Promise<void> {
  toolServers.value = await listToolServers();
}

const offers = new Map<string, Promise<OfferedTools>>();

/** Connect the servers, and return their tools; the same as before until `forgetOffers`. */
export function offersOf(servers: readonly string[]): Promise<OfferedTools> {
  const key = [...servers].sort().join(" ");
  let offer = offers.get(key);
  if (offer === undefined) {
    offer = offeredTools(servers);
    offers.set(key, offer);
    offer.catch(() => offers.delete(key));
  }
  return offer;
}

/** Ask the servers anew: their tools, or which of them are allowed, may have changed. */
export function forgetOffers(): void {
  offers.clear();
}

/** Return tools as requests describe them. */
export const described = (tools: readonly OfferedTool[]): unknown[] =>
  tools.map(({ name, description, parameters }) => ({
    type: "function",
    function: { name, description, parameters },
  }));
