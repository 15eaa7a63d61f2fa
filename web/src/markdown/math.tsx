import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

type Katex = typeof import("katex").default;

const katex = signal<Katex | null>(null);
let loading: Promise<void> | null = null;

/** Fetch KaTeX and its styles when the first formula is shown. */
function load(): Promise<void> {
  loading ??= (async () => {
    const [{ default: styles }, { default: library }] = await Promise.all([
      import("./katex_styles"),
      import("katex"),
    ]);
    await new Promise<void>((resolve) => {
      const link = document.createElement("link");
      link.rel = "stylesheet";
      link.href = styles;
      link.addEventListener("load", () => resolve());
      link.addEventListener("error", () => resolve());
      document.head.append(link);
    });
    katex.value = library;
  })().catch(() => {
    loading = null;
  });
  return loading;
}

/** A formula; its TeX is shown until KaTeX is there, and if there is a mistake in it. */
export function Formula({ tex, display = false }: { tex: string; display?: boolean }) {
  const place = useRef<HTMLElement>(null);
  const library = katex.value;
  useEffect(() => {
    if (katex.peek() === null) void load();
  }, []);
  useLayoutEffect(() => {
    const element = place.current;
    if (library === null || element === null) return;
    try {
      library.render(tex, element, {
        displayMode: display,
        throwOnError: true,
        trust: false,
        strict: "ignore",
        maxSize: 20,
        maxExpand: 500,
        output: "htmlAndMathml",
      });
    } catch {
      element.textContent = tex;
      element.classList.add("math-source");
      return;
    }
    element.classList.remove("math-source");
  }, [library, tex, display]);
  const name = display ? "math-block" : "math";
  if (library === null) {
    return display ? (
      <div class={`${name} math-source`}>{tex}</div>
    ) : (
      <code class={`${name} math-source`}>{tex}</code>
    );
  }
  // KaTeX owns what is in the element: Preact renders it without children.
  return display ? (
    <div key="katex" ref={place as never} class={name} dir="ltr" />
  ) : (
    <span key="katex" ref={place as never} class={name} dir="ltr" />
  );
}
