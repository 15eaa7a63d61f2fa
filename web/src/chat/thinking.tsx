import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Markdown } from "../markdown/markdown";
import { classes, newId } from "../ui/classes";
import { duration } from "../ui/format";
import { Bulb, ChevronRight } from "../ui/icons";

export interface ThinkingProps {
  text: string;
  isGrowing: boolean;
  /** How long it took, if that is known. */
  seconds: number | null;
}

/** What a model thought before it answered, folded. */
export function Thinking({ text, isGrowing, seconds }: ThinkingProps) {
  const isOpen = useSignal(false);
  const id = useRef(newId("thinking")).current;
  const passed = useSignal(0);
  useEffect(() => {
    if (!isGrowing) return;
    const begun = performance.now();
    const timer = setInterval(() => {
      passed.value = (performance.now() - begun) / 1000;
    }, 500);
    return () => clearInterval(timer);
  }, [isGrowing]);
  const title = isGrowing
    ? passed.value < 1
      ? "Thinking"
      : `Thinking for ${duration(passed.value)}`
    : seconds === null
      ? "Thought"
      : `Thought for ${duration(seconds)}`;
  return (
    <div class={classes("thinking", isGrowing && "growing")}>
      <button
        type="button"
        class="thinking-head"
        aria-expanded={isOpen.value}
        aria-controls={id}
        onClick={() => {
          isOpen.value = !isOpen.value;
        }}
      >
        <Bulb size={16} />
        <span class="numbers">{title}</span>
        <ChevronRight size={14} />
      </button>
      <div id={id} class="thinking-text" hidden={!isOpen.value}>
        {isOpen.value && <Markdown text={text} growing={isGrowing} />}
      </div>
    </div>
  );
}
