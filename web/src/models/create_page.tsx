import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { isAbort, messageOf } from "../api/client";
import { showModel } from "../api/models";
import { ScopedButton } from "../shell/scoped_button";
import { TopBar } from "../shell/top_bar";
import { hashOf } from "../state/route";
import { navigate } from "../state/router";
import { confirm } from "../ui/ask";
import { Button, IconButton } from "../ui/button";
import { classes } from "../ui/classes";
import { Select, TextField } from "../ui/fields";
import { bytes } from "../ui/format";
import { ChevronLeft, Close, File as FileIcon, Upload } from "../ui/icons";
import { Notice } from "../ui/notice";
import { chooseFiles } from "../ui/save_file";
import { toast } from "../ui/toast";
import { Editor } from "./editor";
import { isSame, shortName } from "./list";
import { models } from "./local";
import { make, making, stopMaking } from "./making";
import { parseModelfile } from "./modelfile";
import { QUANTISATIONS } from "./parameters";
import { nameProblem, recipeOf, startingFrom } from "./recipe";
import { TransferCard } from "./transfer_card";

const EMPTY = `# A model of your own: what it is made of, and what it begins with.
FROM demo
SYSTEM """You answer in one sentence."""
PARAMETER temperature 0.3
`;

const ACCEPT = ".gguf,.safetensors,.json,.jinja,.model,.txt";

/** Makes a model of a Modelfile, and of files that are uploaded. `from` is the model to begin with, or "". */
export function CreatePage({ from }: { from: string }) {
  const text = useSignal(from === "" ? EMPTY : `FROM ${shortName(from)}\n`);
  const name = useSignal(from === "" ? "" : `${shortName(from).split(":")[0]}-own`);
  const quantise = useSignal("");
  const files = useSignal<ReadonlyMap<string, File>>(new Map());
  const tried = useSignal(false);
  const dragged = useSignal(false);
  const readError = useSignal<string | null>(null);
  const job = useRef(making()).current;
  const recipe = useComputed(() => recipeOf(parseModelfile(text.value), [...files.value.keys()]));
  const errors = recipe.value.problems.filter(({ warning }) => !warning);
  const badName = nameProblem(name.value);
  const running = job.value?.state === "running";

  useEffect(() => {
    const ending = new AbortController();
    if (from !== "") {
      const before = text.peek();
      showModel(from, ending.signal).then(
        ({ modelfile }) => {
          if (text.peek() === before) text.value = startingFrom(modelfile, shortName(from));
        },
        (error) => {
          if (!isAbort(error)) readError.value = messageOf(error);
        },
      );
    }
    return () => {
      ending.abort();
      stopMaking(job);
    };
  }, []);

  const add = (chosen: Iterable<File>) => {
    const next = new Map(files.value);
    for (const file of chosen) {
      const isNew = !next.has(file.name);
      next.set(file.name, file);
      // A GGUF file is named in the Modelfile at once; others may belong to a folder or an adapter.
      if (isNew && /\.gguf$/i.test(file.name) && !text.value.includes(file.name)) {
        const isAdapter = /lora|adapter/i.test(file.name);
        text.value =
          text.value === EMPTY && !isAdapter
            ? text.value.replace("FROM demo", `FROM ./${file.name}`)
            : `${text.value.trimEnd()}\n${isAdapter ? "ADAPTER" : "FROM"} ./${file.name}\n`;
      }
    }
    files.value = next;
  };
  const drop = (removed: string) => {
    files.value = new Map([...files.value].filter(([each]) => each !== removed));
  };

  const start = async (event: Event) => {
    event.preventDefault();
    tried.value = true;
    if (errors.length > 0 || badName !== null || running) return;
    const wanted = name.value.trim();
    if ((models.peek() ?? []).some((each) => isSame(each.name, wanted))) {
      const yes = await confirm({
        title: `Replace ${wanted}?`,
        body: "There is a model of this name. The new one takes its place.",
        action: "Replace",
        danger: true,
      });
      if (!yes) return;
    }
    const { body, files: inModel, adapters } = recipe.value;
    const wholeBody = quantise.value === "" ? body : { ...body, quantize: quantise.value };
    if (await make(job, wanted, { body: wholeBody, files: inModel, adapters }, files.value)) {
      for (const warning of job.value?.warnings ?? []) toast({ kind: "warning", text: warning, seconds: 20 });
      toast({ kind: "success", text: `Created ${wanted}` });
      navigate("models", wanted);
    }
  };

  return (
    <>
      <TopBar title="Create a model">
        <a
          class="button quiet icon-only"
          href={hashOf("models")}
          aria-label="All models"
          data-tip="All models"
        >
          <ChevronLeft size={18} />
        </a>
        <span class="top-title truncate" aria-hidden="true">
          Create a model
        </span>
      </TopBar>
      <div class="page">
        <form class="models create" onSubmit={start}>
          {readError.value && <Notice kind="error">{readError.value}</Notice>}
          <div class="create-grid">
            <Editor
              label="Modelfile"
              value={text.value}
              problems={recipe.value.problems}
              onInput={(value) => {
                text.value = value;
              }}
            />
            <div class="stack">
              <TextField
                label="Name of the model"
                placeholder="mine"
                value={name.value}
                error={tried.value ? badName : null}
                onInput={(value) => {
                  name.value = value;
                }}
              />
              <Select
                label="Quantise"
                value={quantise.value}
                hint="Only models of F16, BF16 or F32 can be quantised."
                options={[
                  { value: "", label: "No: as exact as it is" },
                  ...QUANTISATIONS.map(({ type, about }) => ({ value: type, label: `${type}: ${about}` })),
                ]}
                onChange={(value) => {
                  quantise.value = value;
                }}
              />
              {/* biome-ignore lint/a11y/noStaticElementInteractions: the button within does the same */}
              <div
                class={classes("drop", dragged.value && "dragged")}
                onDragOver={(event) => {
                  event.preventDefault();
                  dragged.value = true;
                }}
                onDragLeave={() => {
                  dragged.value = false;
                }}
                onDrop={(event) => {
                  event.preventDefault();
                  dragged.value = false;
                  add(event.dataTransfer?.files ?? []);
                }}
              >
                <p class="soft small">
                  Files that the Modelfile names: GGUF models, projectors and adapters, or all files of a
                  published model.
                </p>
                <Button
                  icon={Upload}
                  onClick={async () => add(await chooseFiles({ accept: ACCEPT, multiple: true }))}
                >
                  Add files
                </Button>
                {files.value.size > 0 && (
                  <ul class="added">
                    {[...files.value.values()].map((file) => (
                      <li key={file.name}>
                        <FileIcon size={15} />
                        <span class="grow truncate" dir="auto">
                          {file.name}
                        </span>
                        <span class="faint small numbers">{bytes(file.size)}</span>
                        <IconButton
                          size="s"
                          icon={Close}
                          label={`Remove ${file.name}`}
                          onClick={() => drop(file.name)}
                        />
                      </li>
                    ))}
                  </ul>
                )}
              </div>
              <ScopedButton
                scope="manage"
                type="submit"
                kind="primary"
                busy={running}
                reason={errors.length > 0 ? "Mend what is listed below the Modelfile first." : null}
              >
                Create
              </ScopedButton>
              <details class="small">
                <summary>What a Modelfile says</summary>
                <dl class="facts help">
                  {HELP.map(([command, about]) => (
                    <div key={command}>
                      <dt class="mono">{command}</dt>
                      <dd>{about}</dd>
                    </div>
                  ))}
                </dl>
              </details>
            </div>
          </div>
          {job.value && (
            <TransferCard
              transfer={job.value}
              title={`Making ${job.value.name}`}
              onStop={() => stopMaking(job)}
              onDismiss={() => {
                job.value = null;
              }}
            />
          )}
        </form>
      </div>
    </>
  );
}

const HELP: readonly [string, string][] = [
  ["FROM", "a model of this server (pulled if it is not there) or a file that you add"],
  ["SYSTEM", "what the model is told before every chat"],
  ["PARAMETER", "an option and its value, such as temperature 0.3"],
  ["TEMPLATE", "how messages become a prompt"],
  ["MESSAGE", "a role and a message that chats begin with"],
  ["ADAPTER", "a LoRA adapter, and how strongly it counts"],
  ["LICENSE", "the terms it is under"],
];
