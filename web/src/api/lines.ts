/** Splits bytes that arrive in pieces, cut anywhere, into lines; a BOM at the start is dropped. */
export class LineReader {
  private readonly decoder = new TextDecoder("utf-8");
  private rest = "";
  private afterReturn = false;

  /** Return the lines that `bytes` complete. */
  push(bytes: Uint8Array): string[] {
    return this.split(this.decoder.decode(bytes, { stream: true }));
  }

  /** Return the line that had no end, if there is one. */
  finish(): string[] {
    const lines = this.split(this.decoder.decode());
    const last = this.rest;
    this.rest = "";
    return last === "" ? lines : [...lines, last];
  }

  private split(text: string): string[] {
    if (text === "") return [];
    // A CR ends a line at once; the LF of a CRLF may be in the next piece.
    const whole = this.afterReturn && text.startsWith("\n") ? text.slice(1) : text;
    this.afterReturn = whole === "" ? false : whole.endsWith("\r");
    const lines = whole.split(/\r\n|\n|\r/);
    lines[0] = this.rest + (lines[0] ?? "");
    this.rest = lines.pop() ?? "";
    return lines;
  }
}

/** Yield the lines of a body as they arrive. */
export async function* linesOf(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.getReader();
  const lines = new LineReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      yield* lines.push(value);
    }
    yield* lines.finish();
  } finally {
    reader.cancel().catch(() => {});
  }
}
