import { useSignal } from "@preact/signals";
import { Component } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { IconButton } from "../ui/button";
import { classes } from "../ui/classes";
import { copyText } from "../ui/copy_text";
import { Check, Code as CodeIcon, Copy, Download, Eye, Wrap } from "../ui/icons";
import { saveFile } from "../ui/save_file";
import { toastError } from "../ui/toast";
import { Artifact, artifactOf } from "./artifact";
import { type Line, type Piece, plainLines } from "./highlighted";
import { extensionOf, nameOf } from "./languages";

/** Longer code keeps one colour: colouring takes about a second a megabyte. */
const LONGEST_COLOURED = 120_000;
/** Code that grows is coloured anew at most so often, and only while it is short. */
const GROWING_MS = 120;
const LONGEST_GROWING = 12_000;
const CHUNK = 80;

export interface CodeProps {
  text: string;
  /** What stands behind the fence. */
  info: string;
  /** Whether more may come. */
  growing?: boolean;
}

export function CodeBlock({ text, info, growing = false }: CodeProps) {
  const wraps = useSignal(false);
  const copied = useSignal(false);
  const shows = useSignal(false);
  const language = /^[^\s{]*/.exec(info)?.[0] ?? "";
  const lines = useColoured(text, language, growing);
  const artifact = growing ? null : artifactOf(language, text);
  const label = nameOf(language);

  const copy = async () => {
    try {
      await copyText(text);
      copied.value = true;
      setTimeout(() => {
        copied.value = false;
      }, 1600);
    } catch (error) {
      toastError(error, "The code was not copied");
    }
  };

  return (
    <figure class="code" dir="ltr">
      <figcaption class="code-head">
        <span class="grow truncate">{label}</span>
        {artifact !== null && (
          <IconButton
            size="s"
            icon={shows.value ? CodeIcon : Eye}
            label={shows.value ? "Show the code" : "Show the result"}
            onClick={() => {
              shows.value = !shows.value;
            }}
          />
        )}
        {!shows.value && (
          <IconButton
            size="s"
            icon={Wrap}
            label="Wrap lines"
            pressed={wraps.value}
            onClick={() => {
              wraps.value = !wraps.value;
            }}
          />
        )}
        <IconButton
          size="s"
          icon={Download}
          label="Download the code"
          onClick={() => saveFile(new Blob([text], { type: "text/plain" }), `code.${extensionOf(language)}`)}
        />
        <IconButton
          size="s"
          icon={copied.value ? Check : Copy}
          label={copied.value ? "Copied" : "Copy the code"}
          onClick={() => void copy()}
        />
      </figcaption>
      {shows.value && artifact !== null ? (
        <Artifact html={artifact} title={label} />
      ) : (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: long lines are scrolled by the keyboard
        <pre class={classes("code-body", wraps.value && "wraps")} tabIndex={0}>
          <code>
            {chunksOf(lines).map((chunk, index) => (
              <Chunk key={index} lines={chunk} />
            ))}
          </code>
        </pre>
      )}
    </figure>
  );
}

function chunksOf(lines: Line[]): Line[][] {
  const chunks: Line[][] = [];
  for (let at = 0; at < lines.length; at += CHUNK) chunks.push(lines.slice(at, at + CHUNK));
  return chunks;
}

/** Some lines of code. Those off the screen are not laid out. */
class Chunk extends Component<{ lines: Line[] }> {
  override shouldComponentUpdate({ lines }: { lines: Line[] }): boolean {
    return !sameLines(lines, this.props.lines);
  }

  override render() {
    const { lines } = this.props;
    return (
      <span class="code-chunk" style={{ "--lines": lines.length }}>
        {lines.map((line, index) => [
          index > 0 ? "\n" : null,
          line.map((piece) =>
            piece.name === "" ? piece.text : <span class={piece.name}>{piece.text}</span>,
          ),
        ])}
        {lines.at(-1)?.length === 0 ? "\n" : null}
      </span>
    );
  }
}

const samePiece = (one: Piece | undefined, other: Piece | undefined) =>
  one?.text === other?.text && one?.name === other?.name;

const sameLines = (one: Line[], other: Line[]) =>
  one.length === other.length &&
  one.every(
    (line, at) =>
      line === other[at] ||
      (line.length === other[at]?.length &&
        line.every((piece, index) => samePiece(piece, other[at]?.[index]))),
  );

/** Return the lines of a code, coloured as soon as they can be. */
function useColoured(text: string, language: string, growing: boolean): Line[] {
  const coloured = useSignal<{ text: string; lines: Line[] } | null>(null);
  const last = useRef(0);
  useEffect(() => {
    if (language === "" || text.length > (growing ? LONGEST_GROWING : LONGEST_COLOURED)) return;
    let isCurrent = true;
    const colour = async () => {
      try {
        const { highlight } = await import("./highlight");
        if (!isCurrent) return;
        last.current = performance.now();
        const lines = highlight(text, language);
        if (lines !== null) coloured.value = { text, lines };
      } catch {
        // Code without colours is code all the same.
      }
    };
    const wait = growing ? Math.max(0, last.current + GROWING_MS - performance.now()) : 0;
    const timer = setTimeout(() => void colour(), wait);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [text, language, growing]);
  const known = coloured.value;
  if (known === null) return plainLines(text);
  if (known.text === text) return known.lines;
  if (!text.startsWith(known.text)) return plainLines(text);
  // What was coloured stays so; the rest follows in the colour of text until it is coloured, too.
  const rest = plainLines(text.slice(known.text.length));
  const lines = [...known.lines];
  const seam = lines.pop() ?? [];
  return [...lines, [...seam, ...(rest[0] ?? [])], ...rest.slice(1)];
}
