// Computes digests beside the page, so that it stays smooth.
import { digestInSlices } from "./sha256";

addEventListener("message", async ({ data }: MessageEvent<Blob>) => {
  try {
    postMessage({ digest: await digestInSlices(data, (done) => postMessage({ done })) });
  } catch (error) {
    postMessage({ error: error instanceof Error ? error.message : String(error) });
  }
});
