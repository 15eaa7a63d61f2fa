import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { isAbort, messageOf } from "../api/client";
import { showModel } from "../api/models";
import type { ModelShow } from "../api/types";
import { ScopedButton } from "../shell/scoped_button";
import { TopBar } from "../shell/top_bar";
import { now } from "../state/clock";
import { hashOf } from "../state/route";
import { Button, IconButton } from "../ui/button";
import { copyText } from "../ui/copy_text";
import { Empty } from "../ui/empty";
import { TextField } from "../ui/fields";
import { ago, bytes, count } from "../ui/format";
import { Bolt, Chat, ChevronLeft, Copy, Cube, Unload } from "../ui/icons";
import { MenuButton } from "../ui/menu";
import { Badge, Notice } from "../ui/notice";
import { Spinner } from "../ui/progress";
import { Tabs } from "../ui/tabs";
import { toast, toastError } from "../ui/toast";
import { actionsOf, chatWith, KEEPING, load, unload } from "./actions";
import { Abilities, Fit, Staying } from "./badges";
import { isSame, shortName } from "./list";
import { loadedAs, models } from "./local";
import { MemoryChart } from "./memory_chart";
import { Tensors } from "./tensors";

type TabName = "about" | "template" | "memory" | "tensors" | "metadata" | "license" | "modelfile";

export function ModelPage({ name }: { name: string }) {
  const shown = useSignal<ModelShow | null>(null);
  const error = useSignal<string | null>(null);
  const tab = useSignal<TabName>("about");
  const listed = models.value?.find((each) => isSame(each.name, name));
  const digest = listed?.digest;

  useEffect(() => {
    if (models.peek() !== null && digest === undefined && shown.peek() !== null) {
      error.value = "It was deleted.";
      return;
    }
    const ending = new AbortController();
    showModel(name, ending.signal).then(
      (found) => {
        shown.value = found;
        error.value = null;
      },
      (problem) => {
        if (!isAbort(problem)) error.value = messageOf(problem);
      },
    );
    return () => ending.abort();
  }, [name, digest]);

  const model = listed ?? { name, capabilities: shown.value?.capabilities };
  const running = loadedAs(name);
  const isGone = models.value !== null && listed === undefined;
  const canChat = model.capabilities?.includes("completion") ?? false;
  return (
    <>
      <TopBar
        title={shortName(name)}
        actions={
          !isGone && (
            <MenuButton label="Actions" align="end" items={() => actionsOf(model, { onPage: true })} />
          )
        }
      >
        <a
          class="button quiet icon-only"
          href={hashOf("models")}
          aria-label="All models"
          data-tip="All models"
        >
          <ChevronLeft size={18} />
        </a>
        <span class="top-title truncate" dir="auto" aria-hidden="true">
          {shortName(name)}
        </span>
      </TopBar>
      <div class="page">
        <div class="models">
          {error.value && isGone ? (
            <Empty
              icon={Cube}
              title="This model is not here"
              actions={
                <a class="button plain" href={hashOf("models")}>
                  All models
                </a>
              }
            >
              {error.value}
            </Empty>
          ) : (
            <>
              {error.value && <Notice kind="error">{error.value}</Notice>}
              <div class="model-head">
                <div class="row wrap grow">
                  {listed && <Badge>{bytes(listed.size)}</Badge>}
                  {listed?.details.quantization_level && <Badge>{listed.details.quantization_level}</Badge>}
                  <Abilities names={model.capabilities} />
                  {listed && <Fit model={listed} inMemory={running !== undefined} />}
                  {running && (
                    <span class="small soft">
                      <Staying model={running} />
                    </span>
                  )}
                </div>
                {listed && (
                  <div class="row">
                    {running ? (
                      <ScopedButton
                        scope="manage"
                        icon={Unload}
                        reason={running.loading === undefined ? null : "It is being loaded."}
                        onClick={() => void unload(model)}
                      >
                        Unload
                      </ScopedButton>
                    ) : (
                      <ScopedButton
                        scope="generate"
                        icon={Bolt}
                        onClick={() => void load(model, KEEPING[0]!)}
                      >
                        Load
                      </ScopedButton>
                    )}
                    {canChat && (
                      <ScopedButton
                        scope="generate"
                        kind="primary"
                        icon={Chat}
                        onClick={() => chatWith(model)}
                      >
                        Chat
                      </ScopedButton>
                    )}
                  </div>
                )}
              </div>
              {shown.value ? (
                <Details
                  name={name}
                  shown={shown.value}
                  tab={tab.value}
                  onTab={(value) => {
                    tab.value = value;
                  }}
                />
              ) : (
                error.value === null && (
                  <div class="hero-center faint" aria-busy="true">
                    <Spinner />
                    <span class="visually-hidden">Reading the model</span>
                  </div>
                )
              )}
            </>
          )}
        </div>
      </div>
    </>
  );
}

interface DetailsProps {
  name: string;
  shown: ModelShow;
  tab: TabName;
  onTab: (name: TabName) => void;
}

function Details({ name, shown, tab, onTab }: DetailsProps) {
  const tabs: { name: TabName; label: string; count?: number }[] = [
    { name: "about", label: "About" },
    { name: "memory", label: "Memory" },
  ];
  if (shown.template) tabs.push({ name: "template", label: "Template" });
  if (shown.tensors?.length) tabs.push({ name: "tensors", label: "Tensors", count: shown.tensors.length });
  tabs.push({ name: "metadata", label: "Metadata" });
  if (shown.license) tabs.push({ name: "license", label: "Licence" });
  tabs.push({ name: "modelfile", label: "Modelfile" });
  return (
    <Tabs label="About the model" tabs={tabs} selected={tab} onSelect={onTab}>
      {tab === "about" && <About shown={shown} />}
      {tab === "memory" && <MemoryChart name={name} />}
      {tab === "template" && <Text text={shown.template ?? ""} label="Template" />}
      {tab === "tensors" && <Tensors tensors={shown.tensors ?? []} />}
      {tab === "metadata" && <Metadata shown={shown} />}
      {tab === "license" && <Text text={shown.license ?? ""} label="Licence" />}
      {tab === "modelfile" && <Text text={shown.modelfile} label="Modelfile" />}
    </Tabs>
  );
}

function Text({ text, label }: { text: string; label: string }) {
  const copy = async () => {
    try {
      await copyText(text);
      toast({ kind: "success", text: `${label} copied` });
    } catch (error) {
      toastError(error, `The ${label.toLowerCase()} was not copied`);
    }
  };
  return (
    <div class="text-box">
      <IconButton icon={Copy} label={`Copy the ${label.toLowerCase()}`} onClick={() => void copy()} />
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be in reach of the keyboard */}
      <section class="card model-text" tabIndex={0} aria-label={label}>
        <pre dir="auto">{text}</pre>
      </section>
    </div>
  );
}

function About({ shown }: { shown: ModelShow }) {
  const { details, model_info: info, adapters = [], messages = [] } = shown;
  const architecture = String(info["general.architecture"] ?? "");
  const number = (key: string) => {
    const value = info[`${architecture}.${key}`];
    return typeof value === "number" ? count(value) : null;
  };
  const facts: [string, string | null | undefined][] = [
    ["Description", info["general.description"] as string | undefined],
    ["Architecture", architecture || details.family],
    ["Parameters", details.parameter_size],
    ["Type", details.quantization_level],
    ["Layers", number("block_count")],
    ["Context", number("context_length")],
    ["Embedding length", number("embedding_length")],
    ["Made of", details.parent_model],
    ["Runs on", shown.engine],
    ["Needs at least", shown.requires],
    ["Changed", ago(Date.parse(shown.modified_at) / 1000, now.value)],
  ];
  const parameters = (shown.parameters ?? "")
    .split("\n")
    .map((line) => /^(\S+)\s+(.*)$/.exec(line.trim()))
    .filter((found) => found !== null);
  return (
    <div class="about-grid">
      <section class="card about-card">
        <h2>Facts</h2>
        <dl class="facts">
          {facts
            .filter(([, value]) => value)
            .map(([label, value]) => (
              <div key={label}>
                <dt>{label}</dt>
                <dd dir="auto">{value}</dd>
              </div>
            ))}
        </dl>
      </section>
      {parameters.length > 0 && (
        <section class="card about-card">
          <h2>Parameters it comes with</h2>
          <dl class="facts">
            {parameters.map(([, key, value], index) => (
              <div key={index}>
                <dt class="mono">{key}</dt>
                <dd class="mono">{value}</dd>
              </div>
            ))}
          </dl>
        </section>
      )}
      {shown.system && (
        <section class="card about-card">
          <h2>System prompt</h2>
          <p class="prewrap" dir="auto">
            {shown.system}
          </p>
        </section>
      )}
      {messages.length > 0 && (
        <section class="card about-card">
          <h2>Messages that chats begin with</h2>
          <dl class="facts">
            {messages.map(({ role, content }, index) => (
              <div key={index}>
                <dt>{role}</dt>
                <dd class="prewrap" dir="auto">
                  {content}
                </dd>
              </div>
            ))}
          </dl>
        </section>
      )}
      <section class="card about-card">
        <h2>Adapters</h2>
        {adapters.length === 0 ? (
          <p class="soft">
            None. An adapter is a small file that changes what a model says; add some when you create a model
            of this one.
          </p>
        ) : (
          <table class="data-table">
            <thead>
              <tr>
                <th scope="col" class="number">
                  Number
                </th>
                <th scope="col">Name</th>
                <th scope="col" class="number">
                  Scale
                </th>
              </tr>
            </thead>
            <tbody>
              {adapters.map(({ id, name, scale }) => (
                <tr key={id}>
                  <td class="number">{id}</td>
                  <td dir="auto">{name}</td>
                  <td class="number">{scale}</td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
      </section>
    </div>
  );
}

function Metadata({ shown }: { shown: ModelShow }) {
  const query = useSignal("");
  const all = Object.entries({ ...shown.model_info, ...(shown.projector_info ?? {}) });
  const wanted = query.value.toLowerCase();
  const found = all.filter(([key, value]) => `${key} ${value}`.toLowerCase().includes(wanted));
  return (
    <section class="card padded" aria-label="Metadata">
      <div class="table-tools">
        <TextField
          label="Filter keys and values"
          hideLabel
          type="search"
          placeholder="Filter keys and values"
          value={query.value}
          onInput={(value) => {
            query.value = value;
          }}
        />
        <span class="small faint numbers" role="status">
          {count(found.length)} of {count(all.length)}
        </span>
      </div>
      <dl class="facts metadata">
        {found.map(([key, value]) => (
          <div key={key}>
            <dt class="mono">{key}</dt>
            <dd class="mono" dir="auto">
              {valueText(value)}
            </dd>
          </div>
        ))}
      </dl>
      {found.length === 0 && (
        <Button
          onClick={() => {
            query.value = "";
          }}
        >
          Show all
        </Button>
      )}
    </section>
  );
}

function valueText(value: unknown): string {
  if (value === null) return "(a list, left out)";
  if (typeof value === "string") return value;
  const text = JSON.stringify(value);
  return text.length > 300 ? `${text.slice(0, 300)}…` : text;
}
