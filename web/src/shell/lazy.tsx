import { useSignal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect } from "preact/hooks";
import { Button } from "../ui/button";
import { Empty } from "../ui/empty";
import { Offline } from "../ui/icons";
import { Spinner } from "../ui/progress";

/** Return a component that is fetched when it is first shown. */
export function lazy<Props extends object>(load: () => Promise<ComponentType<Props>>): ComponentType<Props> {
  let loaded: ComponentType<Props> | null = null;
  return function Lazy(props: Props) {
    const state = useSignal<"loading" | "ready" | "failed">(loaded === null ? "loading" : "ready");
    const start = () => {
      state.value = "loading";
      load().then(
        (component) => {
          loaded = component;
          state.value = "ready";
        },
        () => {
          state.value = "failed";
        },
      );
    };
    useEffect(() => {
      if (loaded === null) start();
    }, []);
    const Component = loaded;
    if (state.value === "ready" && Component !== null) return <Component {...props} />;
    if (state.value === "failed") {
      return (
        <Empty
          icon={Offline}
          title="This view could not be loaded"
          // A module that failed to load stays failed for the page: browsers do not fetch it again.
          actions={<Button onClick={() => location.reload()}>Reload the page</Button>}
        >
          The server cannot be reached, or was updated since the page was opened.
        </Empty>
      );
    }
    return (
      <div class="hero-center faint" aria-busy="true">
        <Spinner />
        <span class="visually-hidden">Loading</span>
      </div>
    );
  };
}
