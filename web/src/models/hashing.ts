import workerAddress from "./hash_worker.ts?file";
import { digestInSlices } from "./sha256";

/** Files up to this size are hashed at once by the browser, which is faster; larger ones would not fit its memory. */
const AT_ONCE = 64 << 20;

/** Return a file's digest as the server names it: "sha256:" and 64 hexadecimal digits. */
export async function digestOf(
  file: Blob,
  onProgress: (done: number) => void,
  signal: AbortSignal,
): Promise<string> {
  // crypto.subtle exists only in secure contexts, which a server in the local network without TLS is not.
  if (file.size <= AT_ONCE && globalThis.crypto?.subtle !== undefined) {
    const hash = await crypto.subtle.digest("SHA-256", await file.arrayBuffer());
    signal.throwIfAborted();
    onProgress(file.size);
    return `sha256:${[...new Uint8Array(hash)].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
  }
  return `sha256:${await inWorker(file, onProgress, signal)}`;
}

function inWorker(file: Blob, onProgress: (done: number) => void, signal: AbortSignal): Promise<string> {
  let worker: Worker;
  try {
    worker = new Worker(workerAddress, { type: "module" });
  } catch {
    return digestInSlices(file, onProgress);
  }
  return new Promise<string>((resolve, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason));
    worker.addEventListener("error", () => digestInSlices(file, onProgress).then(resolve, reject));
    worker.addEventListener(
      "message",
      ({ data }: MessageEvent<{ done?: number; digest?: string; error?: string }>) => {
        if (data.done !== undefined) onProgress(data.done);
        else if (data.digest !== undefined) resolve(data.digest);
        else reject(new Error(`The file could not be read: ${data.error}`));
      },
    );
    worker.postMessage(file);
  }).finally(() => worker.terminate());
}
