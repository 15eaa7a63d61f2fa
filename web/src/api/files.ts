import { keepsHistory } from "../state/session";
import { ApiError, client } from "./client";
import type { FileRef } from "./types";

/** Bytes of a file of a message; what the server takes at most. */
export const LARGEST_FILE = 64 * 1024 * 1024;

const inTab = new Map<string, Blob>();

/** Keep a file for a message: on the server, or in this tab where the server keeps no chats. */
export async function addFile(file: Blob, name: string, signal?: AbortSignal): Promise<FileRef> {
  if (file.size > LARGEST_FILE) {
    throw new ApiError(413, `${name} is larger than ${LARGEST_FILE / 1024 / 1024} MB.`);
  }
  const type = file.type || "application/octet-stream";
  if (!keepsHistory.value) {
    const id = crypto.getRandomValues(new Uint32Array(4)).join("-");
    inTab.set(id, file);
    return { id, name, type, size: file.size };
  }
  const headers = { "Content-Type": type, "X-File-Name": encodeURIComponent(name) };
  return client.json("api/puna/files", { method: "POST", body: file, headers, signal });
}

export async function getFile(id: string, signal?: AbortSignal): Promise<Blob> {
  const kept = inTab.get(id);
  if (kept !== undefined) return kept;
  return (await client.fetch(`api/puna/files/${encodeURIComponent(id)}`, { signal })).blob();
}
