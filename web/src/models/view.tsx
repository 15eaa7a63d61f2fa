import { ScopedButton } from "../shell/scoped_button";
import { TopBar } from "../shell/top_bar";
import { navigate, route } from "../state/router";
import { Button } from "../ui/button";
import { Plus } from "../ui/icons";
import { Notice } from "../ui/notice";
import { Spinner } from "../ui/progress";
import { CreatePage } from "./create_page";
import { listError, models, reload, useModels } from "./local";
import { ModelList } from "./model_list";
import { ModelPage } from "./model_page";
import { PullForm } from "./pull_form";
import { QuantiseHost } from "./quantise_dialog";

export function ModelsView({ name }: { name: string | null }) {
  useModels();
  const { create } = route.value.query;
  return (
    <>
      {name !== null ? (
        <ModelPage key={name} name={name} />
      ) : create !== undefined ? (
        <CreatePage key={create} from={create} />
      ) : (
        <ListPage />
      )}
      <QuantiseHost />
    </>
  );
}

function ListPage() {
  return (
    <>
      <TopBar
        title="Models"
        actions={
          <ScopedButton
            scope="manage"
            icon={Plus}
            onClick={() => navigate("models", null, { query: { create: "" } })}
          >
            Create
          </ScopedButton>
        }
      />
      <div class="page">
        <div class="models">
          <PullForm />
          {listError.value && (
            <Notice
              kind="error"
              actions={
                <Button size="s" onClick={() => void reload()}>
                  Try again
                </Button>
              }
            >
              {listError.value}
            </Notice>
          )}
          {models.value !== null ? (
            <ModelList models={models.value} />
          ) : (
            listError.value === null && (
              <div class="hero-center faint" aria-busy="true">
                <Spinner />
                <span class="visually-hidden">Loading the list of models</span>
              </div>
            )
          )}
        </div>
      </div>
    </>
  );
}
