import { useRef } from "preact/hooks";
import { classes, newId } from "../ui/classes";
import type { Problem } from "./modelfile";

export interface EditorProps {
  label: string;
  value: string;
  problems: Problem[];
  onInput: (value: string) => void;
}

/** A field for a Modelfile with numbered lines; those with problems are marked, and listed below. */
export function Editor({ label, value, problems, onInput }: EditorProps) {
  const id = useRef(newId("editor")).current;
  const area = useRef<HTMLTextAreaElement>(null);
  const gutter = useRef<HTMLDivElement>(null);
  const lines = value.split(/\r\n|\r|\n/);
  const worst = new Map<number, Problem>();
  for (const problem of problems) {
    if (!worst.has(problem.line) || worst.get(problem.line)!.warning) worst.set(problem.line, problem);
  }

  const show = (line: number) => {
    const element = area.current;
    if (element === null) return;
    const begin = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
    element.focus();
    element.setSelectionRange(begin, begin + (lines[line - 1]?.length ?? 0));
    element.scrollTop = (line - 4) * (element.scrollHeight / Math.max(1, lines.length));
  };
  return (
    <div class="editor">
      <label class="field-label" for={id}>
        {label}
      </label>
      <div class={classes("editor-box", problems.some(({ warning }) => !warning) && "wrong")}>
        <div ref={gutter} class="editor-gutter" aria-hidden="true">
          {lines.map((_, index) => {
            const problem = worst.get(index + 1);
            return (
              <span key={index} class={problem ? (problem.warning ? "warning" : "error") : undefined}>
                {index + 1}
              </span>
            );
          })}
        </div>
        <textarea
          ref={area}
          id={id}
          class="editor-text"
          spellcheck={false}
          autocapitalize="off"
          wrap="off"
          rows={16}
          value={value}
          aria-describedby={`${id}-problems`}
          aria-invalid={problems.some(({ warning }) => !warning) || undefined}
          onInput={(event) => onInput(event.currentTarget.value)}
          onScroll={(event) => {
            if (gutter.current) gutter.current.scrollTop = event.currentTarget.scrollTop;
          }}
        />
      </div>
      <ul id={`${id}-problems`} class="editor-problems" aria-live="polite">
        {problems.map((problem, index) => (
          <li key={index} class={problem.warning ? "warning" : "error"}>
            <button type="button" onClick={() => show(problem.line)}>
              Line {problem.line}
            </button>
            <span dir="auto">{problem.message}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}
