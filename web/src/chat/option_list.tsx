import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Button, IconButton } from "../ui/button";
import { classes, newId } from "../ui/classes";
import { TextField } from "../ui/fields";
import { Undo } from "../ui/icons";
import type { Conversation } from "./conversation";
import { about, parametersIn } from "./models";
import { GROUPS, OPTIONS, type Option, readOption, typed } from "./option_table";

/** All options with their meaning, and what holds without them. */
export function OptionList({ chat }: { chat: Conversation }) {
  const search = useSignal("");
  const showsAll = useSignal(false);
  const own = useSignal<ReadonlyMap<string, string>>(new Map());
  const model = chat.model.value;
  useEffect(() => {
    own.value = new Map();
    if (model === "") return;
    let isCurrent = true;
    about(model).then(
      (shown) => {
        if (isCurrent) own.value = parametersIn(shown.parameters);
      },
      () => {},
    );
    return () => {
      isCurrent = false;
    };
  }, [model]);

  const { options, fields } = chat.settings.value;
  const given = (option: Option) => (option.isField ? fields : options)[option.name];
  const words = search.value.trim().toLowerCase();
  const wanted = OPTIONS.filter((option) => {
    if (words !== "") return `${option.name} ${option.label} ${option.meaning}`.toLowerCase().includes(words);
    return showsAll.value || option.common || given(option) !== undefined;
  });
  const change = (option: Option, value: unknown) => {
    const name = option.isField ? "fields" : "options";
    const { [option.name]: _, ...rest } = chat.settings.peek()[name];
    chat.change({ [name]: value === undefined ? rest : { ...rest, [option.name]: value } });
  };
  return (
    <div class="panel-section option-list">
      <TextField
        label="Find an option"
        hideLabel
        type="search"
        placeholder="Find an option"
        value={search.value}
        onInput={(value) => {
          search.value = value;
        }}
      />
      {GROUPS.map((group) => {
        const list = wanted.filter((option) => option.group === group);
        if (list.length === 0) return null;
        return (
          <section key={group} aria-label={group}>
            <h2 class="option-group">{group}</h2>
            {list.map((option) => (
              <OptionRow
                key={option.name}
                option={option}
                value={given(option)}
                own={own.value.get(option.name)}
                onChange={(value) => change(option, value)}
              />
            ))}
          </section>
        );
      })}
      {wanted.length === 0 && <p class="faint">No option is called that.</p>}
      {words === "" && (
        <div>
          <Button
            size="s"
            kind="quiet"
            aria-expanded={showsAll.value}
            onClick={() => {
              showsAll.value = !showsAll.value;
            }}
          >
            {showsAll.value ? "Show fewer" : `Show all ${OPTIONS.length} options`}
          </Button>
        </div>
      )}
    </div>
  );
}

interface RowProps {
  option: Option;
  value: unknown;
  /** What the model itself says. */
  own: string | undefined;
  onChange: (value: unknown) => void;
}

function OptionRow({ option, value, own, onChange }: RowProps) {
  const id = useSignal(newId("option")).value;
  // What is typed stays as it is, also while it makes no sense yet.
  const text = useSignal(typed(option, value));
  const problem = useSignal<string | null>(null);
  const known = JSON.stringify(value);
  useEffect(() => {
    const read = readOption(option, text.peek());
    if ("value" in read && JSON.stringify(read.value) !== known) {
      text.value = typed(option, value);
      problem.value = null;
    }
  }, [known]);
  const input = (next: string) => {
    text.value = next;
    const read = readOption(option, next);
    problem.value = "problem" in read ? read.problem : null;
    if ("value" in read) onChange(read.value);
  };
  const initial = own ?? option.initial;
  const common = {
    id,
    "aria-describedby": `${id}-hint`,
    "aria-invalid": problem.value !== null || undefined,
    dir: "auto" as const,
  };
  return (
    <div class={classes("option", value !== undefined && "changed")}>
      <div class="option-head">
        <div class="grow">
          <label for={id} class="field-label">
            {option.label}
          </label>
          <code class="option-name">{option.name}</code>
        </div>
        {value !== undefined && (
          <IconButton
            size="s"
            icon={Undo}
            label={`Back to ${initial}`}
            onClick={() => {
              text.value = "";
              problem.value = null;
              onChange(undefined);
            }}
          />
        )}
        {option.kind === "switch" || option.kind === "choice" ? (
          <select
            {...common}
            class="input option-input"
            value={value === undefined ? "" : String(value)}
            onChange={(event) => {
              const chosen = event.currentTarget.value;
              onChange(chosen === "" ? undefined : option.kind === "switch" ? chosen === "true" : chosen);
            }}
          >
            <option value="">{initial}</option>
            {option.kind === "switch" ? (
              <>
                <option value="true">on</option>
                <option value="false">off</option>
              </>
            ) : (
              option.choices?.map((choice) => (
                <option key={choice} value={choice}>
                  {choice}
                </option>
              ))
            )}
          </select>
        ) : option.kind === "number" || option.kind === "whole" ? (
          <input
            {...common}
            class="input option-input numbers"
            inputMode="decimal"
            autocomplete="off"
            placeholder={initial}
            value={text.value}
            onInput={(event) => input(event.currentTarget.value)}
          />
        ) : null}
      </div>
      {(option.kind === "texts" || option.kind === "json" || option.kind === "text") && (
        <textarea
          {...common}
          class="input mono"
          rows={option.kind === "texts" ? 2 : 1}
          spellcheck={false}
          placeholder={initial}
          value={text.value}
          onInput={(event) => input(event.currentTarget.value)}
        />
      )}
      {problem.value !== null && (
        <p class="field-error" role="alert">
          {problem.value}
        </p>
      )}
      <p id={`${id}-hint`} class="field-hint">
        {option.meaning}
        {own !== undefined && ` The model itself says ${own}.`}
      </p>
    </div>
  );
}
