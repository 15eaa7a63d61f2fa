import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";
import { newId } from "./classes";

export interface Tab<Name extends string = string> {
  name: Name;
  label: string;
  /** Shown beside the label. */
  count?: number;
}

export interface TabsProps<Name extends string> {
  label: string;
  tabs: Tab<Name>[];
  selected: Name;
  onSelect: (name: Name) => void;
  children: ComponentChildren;
}

/** Tabs and the panel of the selected one. Arrow keys choose. */
export function Tabs<Name extends string>({ label, tabs, selected, onSelect, children }: TabsProps<Name>) {
  const id = useRef(newId("tabs")).current;
  return (
    <div class="tabs">
      <div
        class="tab-list"
        role="tablist"
        aria-label={label}
        onKeyDown={(event) => moveByArrows(event, "[role=tab]")}
      >
        {tabs.map((tab) => (
          <button
            key={tab.name}
            id={`${id}-${tab.name}`}
            type="button"
            role="tab"
            class="tab"
            aria-selected={tab.name === selected}
            aria-controls={`${id}-panel`}
            tabIndex={tab.name === selected ? 0 : -1}
            onClick={() => onSelect(tab.name)}
          >
            {tab.label}
            {tab.count !== undefined && <span class="count">{tab.count}</span>}
          </button>
        ))}
      </div>
      <div id={`${id}-panel`} class="tab-panel" role="tabpanel" aria-labelledby={`${id}-${selected}`}>
        {children}
      </div>
    </div>
  );
}

/** Move focus among parts of one control, and choose what gets it, as people expect of tabs and radio buttons. */
export function moveByArrows(event: KeyboardEvent & { currentTarget: HTMLElement }, selector: string): void {
  const all = [...event.currentTarget.querySelectorAll<HTMLElement>(selector)];
  const at = all.indexOf(event.target as HTMLElement);
  if (at < 0) return;
  const forwards = getComputedStyle(event.currentTarget).direction === "rtl" ? -1 : 1;
  const steps: Record<string, number> = {
    ArrowRight: at + forwards,
    ArrowLeft: at - forwards,
    ArrowDown: at + 1,
    ArrowUp: at - 1,
    Home: 0,
    End: all.length - 1,
  };
  const to = steps[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const next = all[(to + all.length) % all.length];
  next?.focus();
  next?.click();
}
