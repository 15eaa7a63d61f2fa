import { client } from "./client";
import type { CallResult, OfferedTool, OfferedTools, ToolServer } from "./types";

/** List the MCP servers that the server's owner has configured. */
export async function listToolServers(signal?: AbortSignal): Promise<ToolServer[]> {
  return (await client.json<{ servers: ToolServer[] }>("api/puna/mcp", { signal })).servers;
}

/** Connect servers and return their tools, which may take a minute. */
export const offeredTools = (servers: readonly string[], signal?: AbortSignal): Promise<OfferedTools> =>
  client.json("api/puna/mcp/tools", { json: { servers }, signal });

/** Call a tool that is allowed, or that somebody has confirmed; aborting the request ends the call. */
export const callTool = (
  { server, tool, allowed }: OfferedTool,
  args: unknown,
  signal?: AbortSignal,
): Promise<CallResult> =>
  client.json("api/puna/mcp/call", { json: { server, tool, arguments: args, confirmed: !allowed }, signal });
