// The contents of files of messages, fetched when a request needs them.
import { getFile } from "../api/files";
import type { FileRef, Message } from "../api/types";
import { type Contents, type FileContent, isPicture, isRecording } from "./request";

const known = new Map<string, FileContent>();

/** Files kept in memory, in characters. */
const MOST = 64_000_000;

const sizeOf = (content: FileContent) =>
  content.kind === "text" ? content.text.length : content.base64.length;

/** Return the contents of all files of the messages. Raises `ApiError` or `NetworkError`. */
export async function contentsOf(messages: readonly Message[]): Promise<Contents> {
  const files = messages.flatMap((message) => message.files);
  const found = new Map<string, FileContent>();
  for (const file of files) {
    if (!found.has(file.id)) found.set(file.id, await contentOf(file));
  }
  return found;
}

async function contentOf(file: FileRef): Promise<FileContent> {
  const before = known.get(file.id);
  if (before !== undefined) return before;
  const data = await getFile(file.id);
  const isMedia = isPicture(file) || isRecording(file);
  const content: FileContent = isMedia
    ? { kind: "media", base64: await base64Of(data) }
    : { kind: "text", text: await data.text() };
  let total = sizeOf(content);
  for (const each of known.values()) total += sizeOf(each);
  if (total > MOST) known.clear();
  known.set(file.id, content);
  return content;
}

function base64Of(data: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(String(reader.result).replace(/^[^,]*,/, "")));
    reader.addEventListener("error", () => reject(reader.error ?? new Error("The file could not be read.")));
    reader.readAsDataURL(data);
  });
}

const addresses = new Map<string, Promise<string>>();

/** Return an address under which the page can show a picture or play a recording. */
export function addressOf(file: FileRef): Promise<string> {
  let address = addresses.get(file.id);
  if (address === undefined) {
    // The type decides how a browser reads it, so only these types get into an address.
    const type = /^(?:image\/(?:png|jpeg|gif|webp|bmp|avif)|audio\/[\w.-]+)$/.test(file.type)
      ? file.type
      : "application/octet-stream";
    address = getFile(file.id).then((data) => URL.createObjectURL(new Blob([data], { type })));
    address.catch(() => addresses.delete(file.id));
    addresses.set(file.id, address);
  }
  return address;
}
