import { navigate } from "../state/router";
import { bytes } from "../ui/format";
import { ChevronDown, Columns, Cube } from "../ui/icons";
import { MenuButton, type MenuEntry } from "../ui/menu";
import type { Conversation } from "./conversation";
import { loadModels, modelNamed, models, shortName } from "./models";

function entries(chosen: string, choose: (name: string) => void): MenuEntry[] {
  const list = models.value ?? [];
  const known = modelNamed(chosen)?.name;
  const missing: MenuEntry[] =
    chosen !== "" && known === undefined && models.value !== null
      ? [{ label: shortName(chosen), hint: "not here", checked: true, onSelect: () => {} }]
      : [];
  return [
    ...missing,
    ...list.map((model) => ({
      label: shortName(model.name),
      hint: [model.details.parameter_size, bytes(model.size)].filter(Boolean).join(" · "),
      checked: model.name === known,
      onSelect: () => choose(model.name),
    })),
  ];
}

/** Chooses the model that answers next. */
export function ModelMenu({ chat }: { chat: Conversation }) {
  const model = chat.model.value;
  const { beside } = chat.settings.value;
  const first = model === "" ? "No model" : shortName(model);
  const second = beside === "" ? "" : `and ${shortName(beside)}`;
  return (
    <MenuButton
      class="model-button"
      label={`${[first, second].filter(Boolean).join(" ")}: choose the model`}
      items={() => {
        void loadModels();
        return [
          ...entries(model, (name) => chat.change({ model: name })),
          null,
          { label: "All models…", icon: Cube, onSelect: () => navigate("models") },
        ];
      }}
    >
      <span class="truncate" dir="auto">
        {first}
      </span>
      {second !== "" && (
        <span class="truncate faint" dir="auto">
          {` ${second}`}
        </span>
      )}
      <ChevronDown size={15} />
    </MenuButton>
  );
}

/** Chooses a second model that answers the same, and how many answers there are. */
export function CompareMenu({ chat }: { chat: Conversation }) {
  const { beside, answers } = chat.settings.value;
  const isOn = beside !== "" || answers > 1;
  return (
    <MenuButton
      class={isOn ? "is-on" : undefined}
      label="Several answers"
      icon={Columns}
      align="end"
      items={() => [
        "Answers to a question",
        ...[1, 2, 3, 4, 8].map((count) => ({
          label: count === 1 ? "One" : `${count} side by side`,
          checked: answers === count,
          onSelect: () => chat.change({ answers: count }),
        })),
        "Another model beside it",
        { label: "None", checked: beside === "", onSelect: () => chat.change({ beside: "" }) },
        ...entries(beside, (name) => chat.change({ beside: name })).filter(
          (entry) =>
            entry === null || typeof entry === "string" || entry.label !== shortName(chat.model.value),
        ),
      ]}
    />
  );
}
