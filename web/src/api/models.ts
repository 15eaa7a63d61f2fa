import { ApiError, client } from "./client";
import type { CreateModel, ModelShow, ModelTag, Running, TransferProgress, Version } from "./types";

export const getVersion = (): Promise<Version> => client.json("api/version");

export async function listModels(signal?: AbortSignal): Promise<ModelTag[]> {
  return (await client.json<{ models: ModelTag[] | null }>("api/tags", { signal })).models ?? [];
}

export const showModel = (model: string, signal?: AbortSignal): Promise<ModelShow> =>
  client.json("api/show", { json: { model }, signal });

export const running = (signal?: AbortSignal): Promise<Running> => client.json("api/ps", { signal });

export const cancelRequest = (id: string): Promise<void> => client.run("api/cancel", { json: { id } });

export const pullModel = (model: string, signal: AbortSignal): AsyncGenerator<TransferProgress> =>
  client.lines("api/pull", { json: { model }, signal });

export const createModel = (spec: CreateModel, signal: AbortSignal): AsyncGenerator<TransferProgress> =>
  client.lines("api/create", { json: spec, signal });

export const copyModel = (source: string, destination: string): Promise<void> =>
  client.run("api/copy", { json: { source, destination } });

export const deleteModel = (model: string): Promise<void> =>
  client.run("api/delete", { method: "DELETE", json: { model } });

/** Load a model and keep it for `keepAlive`: "5m", or -1 for as long as the server runs. */
export const loadModel = (
  model: string,
  keepAlive?: string | number,
  options?: Record<string, unknown>,
  signal?: AbortSignal,
): Promise<void> =>
  client.run("api/generate", { json: { model, keep_alive: keepAlive, options, stream: false }, signal });

export const unloadModel = (model: string): Promise<void> =>
  client.run("api/generate", { json: { model, keep_alive: 0, stream: false } });

/** Whether the server has a file, by its digest. */
export async function hasBlob(digest: string, signal?: AbortSignal): Promise<boolean> {
  try {
    await client.run(`api/blobs/${digest}`, { method: "HEAD", signal });
    return true;
  } catch (error) {
    if (error instanceof ApiError && error.isMissing) return false;
    throw error;
  }
}

/** Upload a file for `createModel` under its digest. */
export const uploadBlob = (
  digest: string,
  file: Blob,
  signal: AbortSignal,
  onProgress: (done: number) => void,
): Promise<void> => client.upload(`api/blobs/${digest}`, file, signal, onProgress);
