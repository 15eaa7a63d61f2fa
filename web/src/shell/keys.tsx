import { signal } from "@preact/signals";
import { keyNames, type Shortcut, shortcuts } from "../state/shortcuts";
import { Dialog } from "../ui/dialog";
import { Keys } from "../ui/notice";

const list = signal<Shortcut[] | null>(null);

/** Show the shortcuts that work in the view. */
export function showKeys(): void {
  // Those of the view stop working while a dialog is open, so they are listed first.
  list.value = shortcuts();
}

export function KeysHost() {
  if (list.value === null) return null;
  const groups = [...new Set(list.value.map((each) => each.group))];
  return (
    <Dialog
      title="Keyboard shortcuts"
      onClose={() => {
        list.value = null;
      }}
    >
      {groups.map((group) => (
        <section key={group} class="key-group">
          <h3>{group}</h3>
          <dl>
            {list.value
              ?.filter((each) => each.group === group)
              .map((each) => (
                <div key={each.keys + each.label}>
                  <dt>{each.label}</dt>
                  <dd>
                    <Keys names={keyNames(each.keys)} />
                  </dd>
                </div>
              ))}
          </dl>
        </section>
      ))}
    </Dialog>
  );
}
