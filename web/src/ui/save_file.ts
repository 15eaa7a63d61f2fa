/** Have the browser save a file. */
export function saveFile(content: Blob, name: string): void {
  const address = URL.createObjectURL(content);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/** Return a name that every file system takes. */
export function fileName(title: string, extension: string): string {
  const name = title
    .normalize("NFC")
    // biome-ignore lint/suspicious/noControlCharactersInRegex: what file names must not have
    .replace(/[\u0000-\u001f\u007f<>:"/\\|?*\u200e\u200f\u202a-\u202e\u2066-\u2069]+/g, " ")
    .replace(/\s+/g, " ")
    .replace(/^[. ]+|[. ]+$/g, "");
  return `${[...name].slice(0, 80).join("").trim() || "chat"}.${extension}`;
}

/** Ask for files; empty if none was chosen. */
export function chooseFiles({ accept = "", multiple = false } = {}): Promise<File[]> {
  return new Promise((resolve) => {
    const input = document.createElement("input");
    input.type = "file";
    input.accept = accept;
    input.multiple = multiple;
    input.addEventListener("change", () => resolve([...(input.files ?? [])]));
    input.addEventListener("cancel", () => resolve([]));
    input.click();
  });
}
