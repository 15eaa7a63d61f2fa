// What kind a file is, and how large one of its kind may be.
import { bytes } from "../ui/format";

export const LARGEST = { image: 20_000_000, audio: 40_000_000, text: 10_000_000, pdf: 50_000_000 };
export const MOST_FILES = 32;
export const MOST_PDF_PAGES = 1000;
export const MOST_PICTURED_PAGES = 20;
/** Text longer than this is attached when it is pasted, in characters. */
export const LONGEST_PASTE = 12_000;

export type FileKind = keyof typeof LARGEST;

const PICTURES = /\.(?:png|jpe?g|gif|webp|bmp|avif|svg|heic|heif|tiff?|ico)$/i;
const RECORDINGS = /\.(?:wav|flac|og[ga]|opus|mp3)$/i;
/** Sounds in formats that servers do not read. */
const OTHER_SOUNDS = /\.(?:m4a|aac|wma|aiff?|amr)$/i;
const REFUSED =
  /\.(?:docx?|xlsx?|pptx?|od[tspg]|pages|numbers|key|epub|mobi|zip|gz|bz2|xz|7z|rar|tar|jar|exe|dll|so|bin|gguf|safetensors|mp4|mov|avi|mkv|webm|sqlite|db|class|pyc|woff2?|ttf|otf)$/i;

/** Return the kind of a file by its name and type. */
export function kindOf(name: string, type: string): FileKind {
  if (type === "application/pdf" || /\.pdf$/i.test(name)) return "pdf";
  if (type.startsWith("image/") || PICTURES.test(name)) return "image";
  if (RECORDINGS.test(name) || /^audio\/(?:x-|vnd\.)?(?:wave?|flac|ogg|mpeg|mp3)$/.test(type)) return "audio";
  return "text";
}

/** Return the type that a recording is kept with. Its content, not its type, tells servers how to read it. */
export function recordingType(name: string, type: string): string {
  if (type.startsWith("audio/")) return type;
  if (/\.mp3$/i.test(name)) return "audio/mpeg";
  return /\.wav$/i.test(name) ? "audio/wav" : /\.flac$/i.test(name) ? "audio/flac" : "audio/ogg";
}

/** Return why a file cannot be attached, or null. */
export function refusal(name: string, type: string, size: number): string | null {
  if (size === 0) return `${name} is empty.`;
  const kind = kindOf(name, type);
  if (kind !== "audio" && (type.startsWith("audio/") || OTHER_SOUNDS.test(name))) {
    return `${name} is no WAV, FLAC, OGG or MP3. Save it as one of these.`;
  }
  if (REFUSED.test(name) || (kind !== "audio" && /^(?:video|font)\//.test(type))) {
    return `${name} is neither a picture, a recording, text nor a PDF. Save it as one of these.`;
  }
  if (size > LARGEST[kind]) {
    const what = { image: "Pictures", audio: "Recordings", text: "Text files", pdf: "PDF files" }[kind];
    return `${name} has ${bytes(size)}. ${what} can have at most ${bytes(LARGEST[kind])}.`;
  }
  return null;
}

/** Return the text of a file in UTF-8 or UTF-16, or null if it is no text. */
export function textIn(data: Uint8Array): string | null {
  const utf16 =
    data[0] === 0xff && data[1] === 0xfe
      ? "utf-16le"
      : data[0] === 0xfe && data[1] === 0xff
        ? "utf-16be"
        : null;
  if (utf16 !== null) return new TextDecoder(utf16).decode(data);
  if (data.subarray(0, 8192).includes(0)) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data);
  } catch {
    // Text from before Unicode: letters with accents are single bytes above 0x9f.
    const odd = data.filter(
      (byte) => (byte >= 0x80 && byte < 0xa0) || (byte < 0x20 && ![9, 10, 12, 13, 27].includes(byte)),
    );
    return odd.length > data.length / 50 ? null : new TextDecoder("windows-1252").decode(data);
  }
}
