// Files on their way into a message: read, checked, and uploaded while the message is still written.
import { signal } from "@preact/signals";
import { messageOf } from "../api/client";
import { addFile } from "../api/files";
import type { FileRef } from "../api/types";
import { kindOf, MOST_FILES, recordingType, refusal, textIn } from "./file_kinds";

export interface Attachment {
  key: number;
  name: string;
  size: number;
  state: "reading" | "ready" | "failed";
  file: FileRef | null;
  error: string | null;
  /** The file as it was chosen, for another way to attach it. */
  source: File | null;
}

let last = 0;

/** The files of one composer. */
export class Attachments {
  readonly list = signal<Attachment[]>([]);

  get isReady(): boolean {
    return this.list.value.every((each) => each.state === "ready");
  }

  get files(): FileRef[] {
    return this.list.value.flatMap((each) => (each.file === null ? [] : [each.file]));
  }

  /** Put files there that are uploaded already, as those of a message that is edited. */
  set(files: readonly FileRef[]): void {
    this.list.value = files.map((file) => ({
      key: ++last,
      name: file.name,
      size: file.size,
      state: "ready",
      file,
      error: null,
      source: null,
    }));
  }

  remove(key: number): void {
    this.list.value = this.list.value.filter((each) => each.key !== key);
  }

  clear(): void {
    this.list.value = [];
  }

  async add(files: readonly File[], pdf: "text" | "pictures" = "text"): Promise<void> {
    const room = MOST_FILES - this.list.value.length;
    await Promise.all(files.slice(0, room).map((file) => this.addOne(file, pdf)));
    if (files.length > room) {
      const { name, size } = files[room]!;
      this.put({ name, size, error: `A message has at most ${MOST_FILES} files.` });
    }
  }

  /** Attach a PDF anew, as pictures of its pages. */
  async asPictures(key: number): Promise<void> {
    const source = this.list.value.find((each) => each.key === key)?.source;
    if (!source) return;
    this.remove(key);
    await this.add([source], "pictures");
  }

  private put(part: Pick<Attachment, "name" | "size"> & Partial<Attachment>): number {
    const key = ++last;
    const state = part.error ? "failed" : "reading";
    this.list.value = [...this.list.value, { key, state, file: null, error: null, source: null, ...part }];
    return key;
  }

  private change(key: number, change: Partial<Attachment>): void {
    this.list.value = this.list.value.map((each) => (each.key === key ? { ...each, ...change } : each));
  }

  private async addOne(file: File, pdf: "text" | "pictures"): Promise<void> {
    const error = refusal(file.name, file.type, file.size);
    const kind = kindOf(file.name, file.type);
    const key = this.put({ name: file.name, size: file.size, error, source: kind === "pdf" ? file : null });
    if (error !== null) return;
    try {
      const [first, ...rest] = await prepared(file, kind, pdf);
      if (first === undefined) return;
      const added = await addFile(first, first.name);
      this.change(key, { state: "ready", file: added, size: added.size, name: added.name });
      for (const each of rest) {
        const at = this.put({ name: each.name, size: each.size });
        this.change(at, { state: "ready", file: await addFile(each, each.name) });
      }
    } catch (failure) {
      this.change(key, { state: "failed", error: messageOf(failure) });
    }
  }
}

/** Return what is uploaded of a file: a picture or recording that servers read, or text in UTF-8. */
async function prepared(file: File, kind: string, pdf: "text" | "pictures"): Promise<File[]> {
  if (kind === "image") return [await picture(file)];
  if (kind === "audio") return [new File([file], file.name, { type: recordingType(file.name, file.type) })];
  if (kind === "pdf") {
    const { picturesOfPdf, textOfPdf } = await import("./pdf");
    if (pdf === "pictures") return picturesOfPdf(file);
    return [new File([await textOfPdf(file)], file.name, { type: "text/plain" })];
  }
  const text = textIn(new Uint8Array(await file.arrayBuffer()));
  if (text === null) throw new Error(`${file.name} is neither a picture, a recording, text nor a PDF.`);
  return [new File([text.replaceAll("\r\n", "\n")], file.name, { type: "text/plain" })];
}

const TAKEN = ["image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp"];
const LARGEST_SIDE = 4096;

/** Return a picture in a format that models get to see: others become PNG, very large ones smaller JPEG. */
async function picture(file: File): Promise<File> {
  const address = URL.createObjectURL(file);
  try {
    const image = new Image();
    image.src = address;
    try {
      await image.decode();
    } catch {
      throw new Error(`${file.name} is no picture that this browser reads. Save it as PNG or JPEG.`);
    }
    const width = image.naturalWidth || 1024;
    const height = image.naturalHeight || 1024;
    const isLarge = Math.max(width, height) > LARGEST_SIDE || file.size > 8_000_000;
    if (TAKEN.includes(file.type) && !isLarge) return file;
    const scale = Math.min(1, LARGEST_SIDE / Math.max(width, height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(width * scale));
    canvas.height = Math.max(1, Math.round(height * scale));
    const pen = canvas.getContext("2d");
    if (pen === null) return file;
    pen.fillStyle = "#ffffff";
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(image, 0, 0, canvas.width, canvas.height);
    const type = isLarge ? "image/jpeg" : "image/png";
    const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, type, 0.92));
    if (blob === null) throw new Error(`${file.name} could not be converted.`);
    return new File([blob], file.name, { type });
  } finally {
    URL.revokeObjectURL(address);
  }
}
