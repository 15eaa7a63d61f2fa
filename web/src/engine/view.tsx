import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import type { Live, LiveModel } from "../api/types";
import { TopBar } from "../shell/top_bar";
import { hashOf } from "../state/route";
import { useShortcut } from "../state/shortcuts";
import { Button } from "../ui/button";
import { Empty } from "../ui/empty";
import { Select } from "../ui/fields";
import { plural } from "../ui/format";
import { Pause, Play, Pulse } from "../ui/icons";
import { Notice } from "../ui/notice";
import { Progress, Spinner } from "../ui/progress";
import { Caches } from "./caches";
import { connection, engine, histories, paused, refusal, replica, useFeed } from "./feed";
import { engineOf, type History } from "./history";
import { Machine, Runners } from "./machine";
import { Panel } from "./panel";
import { Prefixes } from "./prefixes";
import { Requests } from "./requests";
import { SequenceTable } from "./sequences";
import { Stages } from "./stages";
import { Tiles } from "./tiles";
import { Drafts, Speed, StepTime } from "./time";

const togglePause = () => {
  paused.value = !paused.value;
};

export function EngineView() {
  useFeed();
  useShortcut({ keys: "p", label: "Pause or go on", group: "Engine", run: togglePause });
  const chosen = useSignal("");
  const state = engine.value;
  const models = state?.models ?? [];
  const model = models.find(({ name }) => name === chosen.value) ?? models[0];
  return (
    <>
      <TopBar
        title="Engine"
        actions={
          <>
            <Status />
            <Button
              icon={paused.value ? Play : Pause}
              pressed={paused.value}
              data-tip={paused.value ? "Follow the engine again" : "Keep what is shown as it is"}
              data-keys="p"
              onClick={togglePause}
            >
              {paused.value ? "Go on" : "Pause"}
            </Button>
          </>
        }
      />
      <div class="page">
        <div class="engine">
          {refusal.value && <Notice kind="error">{refusal.value}</Notice>}
          <div class="engine-choices">
            {models.length > 1 && model && (
              <Select
                label="Model"
                hideLabel
                value={model.name}
                options={models.map(({ name }) => ({ value: name, label: name }))}
                onChange={(name) => {
                  chosen.value = name;
                }}
              />
            )}
            {model && model.replicas.length > 1 && (
              <Select
                label="Replica"
                hideLabel
                value={model.replica}
                options={model.replicas.map(({ name, node }) => ({
                  value: name,
                  label: `${name} on ${node}`,
                }))}
                onChange={(name) => {
                  replica.value = name;
                }}
              />
            )}
          </div>
          {state === null ? (
            refusal.value === null && (
              <div class="hero-center faint" aria-busy="true">
                <Spinner />
                <span class="visually-hidden">Waiting for the engine's state</span>
              </div>
            )
          ) : (
            <Shown state={state} model={model} />
          )}
        </div>
      </div>
    </>
  );
}

function Shown({ state, model }: { state: Live; model: LiveModel | undefined }) {
  const history = histories.value[model ? engineOf(model) : ""];
  const steps = model?.state === "ready" ? model.steps : null;
  return (
    <>
      {model === undefined && <Nothing />}
      {model?.state === "loading" && <Loading model={model} />}
      {model?.state === "ready" && steps === null && <Silent model={model} />}
      {model && steps && <Tiles model={model} history={history} />}
      <div class="panels">
        {model && steps && <Work model={model} history={history} now={state.time} />}
        <Requests state={state} />
        {steps && <Drafts history={history} steps={steps} now={state.time} />}
        <Machine state={state} />
        {state.models.length > 0 && <Runners state={state} />}
      </div>
    </>
  );
}

function Work({ model, history, now }: { model: LiveModel; history: History | undefined; now: number }) {
  const chosen = useSignal<number | null>(null);
  // A sequence that has left cannot stand out.
  useEffect(() => {
    if (chosen.value !== null && !model.sequences.some(({ row }) => row === chosen.value))
      chosen.value = null;
  }, [model.sequences]);
  return (
    <>
      <Speed history={history} now={now} />
      <StepTime history={history} now={now} />
      <Panel
        wide
        title="Sequences"
        about="Every prompt being answered is a sequence; all of them advance together in one batch, step by step."
        side={<span class="panel-side">{plural(model.parallel, "slot")}</span>}
      >
        <SequenceTable model={model} />
      </Panel>
      <Stages model={model} />
      <Caches model={model} chosen={chosen} />
      <Prefixes model={model} />
    </>
  );
}

function Silent({ model }: { model: LiveModel }) {
  return (
    <Notice>
      {model.engine === "puna"
        ? "The engine has not told of its work yet."
        : `${model.name} runs on ${model.engine || "another engine"}, which does not tell of its steps. Only Puna's own engine does.`}
    </Notice>
  );
}

function Nothing() {
  return (
    <Empty
      icon={Pulse}
      title="No model is in memory"
      actions={
        <a class="button primary" href={hashOf("models")}>
          Load a model
        </a>
      }
    >
      Ask a model something, or load one, and watch the engine at work here: what its time goes on, whose
      tokens lie where, what it remembers of earlier prompts.
    </Empty>
  );
}

function Loading({ model }: { model: LiveModel }) {
  return (
    <div class="card loading-model">
      <p>
        Loading <b dir="auto">{model.name}</b>
      </p>
      <Progress value={model.loading} label={`Loading ${model.name}`} />
    </div>
  );
}

function Status() {
  const [kind, words] = paused.value
    ? ["paused", "Paused"]
    : connection.value === "open"
      ? ["open", "Live"]
      : connection.value === "connecting"
        ? ["waiting", "Connecting"]
        : connection.value === "broken"
          ? ["waiting", "Reconnecting"]
          : ["failed", "Not available"];
  return (
    <span class={`feed-status ${kind}`} role="status">
      {words}
    </span>
  );
}
