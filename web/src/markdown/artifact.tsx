import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { client } from "../api/client";
import { IconButton } from "../ui/button";
import { Dialog } from "../ui/dialog";
import { Expand } from "../ui/icons";

/** Return the document of code that can be shown as one, else null. */
export function artifactOf(language: string, text: string): string | null {
  const name = language.toLowerCase();
  if (name === "html" || name === "htm") return text;
  if (
    (name === "svg" || name === "xml" || name === "") &&
    /^\s*(?:<\?xml[^>]*>\s*)?(?:<!--[\s\S]*?-->\s*)?<svg[\s>]/.test(text)
  ) {
    const style =
      "html,body{margin:0;height:100%}body{display:grid;place-items:center}svg{max-width:100%;max-height:100%}";
    return `<!doctype html><meta charset="utf-8"><style>${style}</style>${text.replace(/^\s*<\?xml[^>]*>/, "")}`;
  }
  return null;
}

/** A document that a model wrote, in a frame without an origin and without a network. */
export function Artifact({ html, title }: { html: string; title: string }) {
  const isLarge = useSignal(false);
  return (
    <div class="artifact">
      <Frame html={html} title={title} />
      <IconButton
        class="artifact-expand"
        size="s"
        kind="plain"
        icon={Expand}
        label="Show it large"
        onClick={() => {
          isLarge.value = true;
        }}
      />
      {isLarge.value && (
        <Dialog
          title={`${title}, written by the model`}
          size="l"
          class="artifact-dialog"
          onClose={() => {
            isLarge.value = false;
          }}
        >
          <Frame html={html} title={title} />
        </Dialog>
      )}
    </div>
  );
}

function Frame({ html, title }: { html: string; title: string }) {
  const frame = useRef<HTMLIFrameElement>(null);
  useEffect(() => {
    const onMessage = (event: MessageEvent) => {
      const target = frame.current?.contentWindow;
      if (event.source !== target || (event.data as { kind?: unknown } | null)?.kind !== "ready") return;
      // The frame has an opaque origin, which no target origin but "*" names.
      target?.postMessage({ html }, "*");
    };
    addEventListener("message", onMessage);
    if (frame.current !== null) frame.current.src = client.url("artifact.html");
    return () => removeEventListener("message", onMessage);
  }, [html]);
  return <iframe ref={frame} class="artifact-frame" title={`${title}, shown`} sandbox="allow-scripts" />;
}
