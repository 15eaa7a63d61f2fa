import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { classes, newId } from "./classes";
import { ChevronDown, type Icon } from "./icons";
import { moveByArrows } from "./tabs";

interface Described {
  label: string;
  /** Said to screen readers only. */
  hideLabel?: boolean;
  hint?: ComponentChildren;
  error?: string | null;
  disabled?: boolean;
}

interface FieldProps extends Described {
  children: (ids: { id: string; "aria-describedby"?: string; "aria-invalid"?: true }) => ComponentChildren;
}

/** A control with its label, hint and error. */
export function Field({ label, hideLabel, hint, error, children }: FieldProps) {
  const id = useRef(newId("field")).current;
  const about = [hint ? `${id}-hint` : "", error ? `${id}-error` : ""].filter(Boolean).join(" ");
  return (
    <div class="field">
      <label for={id} class={classes("field-label", hideLabel && "visually-hidden")}>
        {label}
      </label>
      {children({ id, "aria-describedby": about || undefined, "aria-invalid": error ? true : undefined })}
      {error && (
        <p id={`${id}-error`} class="field-error" role="alert">
          {error}
        </p>
      )}
      {hint && (
        <p id={`${id}-hint`} class="field-hint">
          {hint}
        </p>
      )}
    </div>
  );
}

export interface TextFieldProps extends Described {
  value: string;
  onInput: (value: string) => void;
  type?: "text" | "password" | "search" | "url" | "number";
  placeholder?: string;
  suggestions?: string[];
  autofocus?: boolean;
  /** Whether the text is selected when the field appears. */
  selected?: boolean;
  autocomplete?: string;
  mono?: boolean;
  /** Several lines. */
  rows?: number;
}

export function TextField(props: TextFieldProps) {
  const { label, hideLabel, hint, error, value, onInput, suggestions, rows, autofocus, selected, mono } =
    props;
  const input = useRef<HTMLInputElement & HTMLTextAreaElement>(null);
  const list = useRef(newId("list")).current;
  useLayoutEffect(() => {
    if (autofocus) input.current?.focus();
    if (selected) input.current?.select();
  }, []);
  return (
    <Field label={label} hideLabel={hideLabel} hint={hint} error={error}>
      {(ids) => {
        const common = {
          ...ids,
          ref: input,
          value,
          disabled: props.disabled,
          // A dialog is opened after what is in it was drawn, and then focuses this.
          "data-autofocus": autofocus ? "" : undefined,
          placeholder: props.placeholder,
          dir: "auto" as const,
          class: classes("input", mono && "mono"),
          spellcheck: mono ? false : undefined,
          onInput: (event: Event) => onInput((event.currentTarget as HTMLInputElement).value),
        };
        return rows ? (
          <textarea {...common} rows={rows} />
        ) : (
          <>
            <input
              {...common}
              // The types of Preact tell inputs apart by their type, which is not known here.
              type={(props.type ?? "text") as "text"}
              autocomplete={props.autocomplete ?? "off"}
              list={suggestions?.length ? list : undefined}
            />
            {suggestions?.length ? (
              <datalist id={list}>
                {suggestions.map((each) => (
                  <option key={each} value={each} />
                ))}
              </datalist>
            ) : null}
          </>
        );
      }}
    </Field>
  );
}

export interface SelectProps<Value extends string> extends Described {
  value: Value;
  options: { value: Value; label: string; disabled?: boolean }[];
  onChange: (value: Value) => void;
}

export function Select<Value extends string>(props: SelectProps<Value>) {
  const { label, hideLabel, hint, error, value, options, onChange, disabled } = props;
  return (
    <Field label={label} hideLabel={hideLabel} hint={hint} error={error}>
      {(ids) => (
        <div class="select">
          <select
            {...ids}
            class="input"
            value={value}
            disabled={disabled}
            onChange={(event) => onChange(event.currentTarget.value as Value)}
          >
            {options.map((each) => (
              <option key={each.value} value={each.value} disabled={each.disabled}>
                {each.label}
              </option>
            ))}
          </select>
          <ChevronDown size={15} />
        </div>
      )}
    </Field>
  );
}

export interface SwitchProps extends Described {
  checked: boolean;
  onChange: (checked: boolean) => void;
}

export function Switch({ label, hideLabel, hint, checked, onChange, disabled }: SwitchProps) {
  const id = useRef(newId("switch")).current;
  return (
    <div class="switch-row">
      <div class="grow">
        <label for={id} class={classes("field-label", hideLabel && "visually-hidden")}>
          {label}
        </label>
        {hint && (
          <p id={`${id}-hint`} class="field-hint">
            {hint}
          </p>
        )}
      </div>
      <input
        id={id}
        type="checkbox"
        role="switch"
        class="switch"
        checked={checked}
        aria-checked={checked}
        disabled={disabled}
        aria-describedby={hint ? `${id}-hint` : undefined}
        onChange={(event) => onChange(event.currentTarget.checked)}
      />
    </div>
  );
}

export interface SegmentedProps<Value extends string> {
  label: string;
  value: Value;
  options: { value: Value; label: string; icon?: Icon }[];
  onChange: (value: Value) => void;
}

/** A choice among few, all of them shown. */
export function Segmented<Value extends string>({ label, value, options, onChange }: SegmentedProps<Value>) {
  return (
    <div
      class="segmented"
      role="radiogroup"
      aria-label={label}
      onKeyDown={(event) => moveByArrows(event, "[role=radio]")}
    >
      {options.map(({ value: each, label: text, icon: Glyph }) => (
        // biome-ignore lint/a11y/useSemanticElements: a button that is one of a group of choices
        <button
          key={each}
          type="button"
          role="radio"
          aria-checked={each === value}
          tabIndex={each === value ? 0 : -1}
          onClick={() => onChange(each)}
        >
          {Glyph && <Glyph size={16} />}
          {text}
        </button>
      ))}
    </div>
  );
}
