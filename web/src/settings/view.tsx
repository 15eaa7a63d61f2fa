import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { client } from "../api/client";
import { listModels } from "../api/models";
import { exportAll, removeAll } from "../history/actions";
import { chooseImport } from "../history/import_dialog";
import { showKeys } from "../shell/keys";
import { TopBar } from "../shell/top_bar";
import {
  defaultModel,
  enterSends,
  type TextSize,
  type ThemeChoice,
  textSize,
  themeChoice,
  titlesByModel,
} from "../state/preferences";
import { can, keepsHistory, me, signOut } from "../state/session";
import { isMac } from "../state/shortcuts";
import { Button } from "../ui/button";
import { Segmented, Select, Switch } from "../ui/fields";
import { Download, Keyboard, Monitor, Moon, SignOut, Sun, Trash, Upload } from "../ui/icons";
import { DefaultSettings } from "./defaults";
import { Section, Setting } from "./section";

export function SettingsView({ section }: { section: string | null }) {
  useEffect(() => {
    if (section !== null) document.getElementById(`settings-${section}`)?.scrollIntoView();
  }, [section]);
  return (
    <>
      <TopBar title="Settings" />
      <div class="page">
        <div class="settings">
          <Appearance />
          {can("generate") && <Chats />}
          {can("generate") && <DefaultSettings />}
          {can("generate") && <Data />}
          {me.value?.keys && <Account />}
          <About />
        </div>
      </div>
    </>
  );
}

function Appearance() {
  return (
    <Section name="appearance" title="Appearance">
      <Setting title="Theme">
        <Segmented<ThemeChoice>
          label="Theme"
          value={themeChoice.value}
          options={[
            { value: "system", label: "System", icon: Monitor },
            { value: "light", label: "Light", icon: Sun },
            { value: "dark", label: "Dark", icon: Moon },
          ]}
          onChange={(value) => {
            themeChoice.value = value;
          }}
        />
      </Setting>
      <Setting title="Text size">
        <Segmented<TextSize>
          label="Text size"
          value={textSize.value}
          options={[
            { value: "small", label: "Small" },
            { value: "medium", label: "Medium" },
            { value: "large", label: "Large" },
          ]}
          onChange={(value) => {
            textSize.value = value;
          }}
        />
      </Setting>
      <Setting title="Keyboard shortcuts" hint="Press ? in any view for the keys that work there.">
        <Button icon={Keyboard} onClick={showKeys}>
          Show
        </Button>
      </Setting>
    </Section>
  );
}

function Chats() {
  const models = useSignal<string[]>([]);
  useEffect(() => {
    const ending = new AbortController();
    listModels(ending.signal).then(
      (found) => {
        models.value = found.map(({ name }) => name);
      },
      () => {},
    );
    return () => ending.abort();
  }, []);
  const chosen = defaultModel.value;
  const names = chosen === "" || models.value.includes(chosen) ? models.value : [chosen, ...models.value];
  return (
    <Section name="chat" title="Chat">
      <Setting title="Model of new chats">
        <Select
          label="Model of new chats"
          hideLabel
          value={chosen}
          options={[
            { value: "", label: "The one used last" },
            ...names.map((name) => ({ value: name, label: name })),
          ]}
          onChange={(value) => {
            defaultModel.value = value;
          }}
        />
      </Setting>
      <div class="setting">
        <Switch
          label="Enter sends the message"
          hint={`Shift+Enter begins a new line. Otherwise ${isMac ? "⌘" : "Ctrl"}+Enter sends.`}
          checked={enterSends.value}
          onChange={(checked) => {
            enterSends.value = checked;
          }}
        />
      </div>
      <div class="setting">
        <Switch
          label="Let the model name chats"
          hint="After the first answer, the same model writes a title when the engine is idle. Otherwise chats are named after their first question."
          checked={titlesByModel.value}
          disabled={!keepsHistory.value}
          onChange={(checked) => {
            titlesByModel.value = checked;
          }}
        />
      </div>
    </Section>
  );
}

function Data() {
  return (
    <Section name="data" title="Your chats">
      <Setting
        title="Where they are kept"
        hint={
          keepsHistory.value
            ? me.value?.keys
              ? "On this server, for your key only. Nothing is sent anywhere else."
              : "On this server. Nothing is sent anywhere else."
            : "In this tab only: the server runs with PUNA_HISTORY=off. They are gone when the tab is closed or reloaded."
        }
      >
        {null}
      </Setting>
      <Setting title="Export" hint="All chats with all their branches, in one JSON file.">
        <Button icon={Download} onClick={() => void exportAll()}>
          Export all
        </Button>
      </Setting>
      <Setting
        title="Import"
        hint={
          keepsHistory.value
            ? "A Puna export, ChatGPT’s conversations.json, or an export of Open WebUI."
            : "A Puna export."
        }
      >
        <Button icon={Upload} onClick={() => void chooseImport()}>
          Import…
        </Button>
      </Setting>
      <Setting title="Delete" hint="All chats and their files, for good.">
        <Button icon={Trash} kind="danger" onClick={() => void removeAll()}>
          Delete all…
        </Button>
      </Setting>
    </Section>
  );
}

const SCOPES = {
  generate: "chat and generate",
  read: "see the engine",
  manage: "manage models and see all clients",
};

function Account() {
  const who = me.value;
  if (who === null) return null;
  return (
    <Section name="account" title="Your key">
      <Setting
        title={who.name ?? "Key without a name"}
        hint={`It allows to ${who.scopes.map((scope) => SCOPES[scope] ?? scope).join(", ")}.`}
      >
        <Button icon={SignOut} onClick={signOut}>
          Sign out
        </Button>
      </Setting>
    </Section>
  );
}

function About() {
  const licences = document.querySelector<HTMLLinkElement>("link[rel=license]")?.href;
  return (
    <Section name="about" title="About">
      <dl class="about">
        <dt>Puna</dt>
        <dd>{me.value?.version}</dd>
        <dt>Server</dt>
        <dd class="truncate" dir="ltr">
          {client.url("")}
        </dd>
        <dt>Page</dt>
        <dd>
          <a href={licences} target="_blank" rel="noopener noreferrer">
            Licences of the packages in it
          </a>
        </dd>
      </dl>
    </Section>
  );
}
