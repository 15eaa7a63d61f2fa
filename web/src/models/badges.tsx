import { useEffect, useRef } from "preact/hooks";
import type { ModelTag, RunningModel } from "../api/types";
import { now } from "../state/clock";
import { duration, percent } from "../ui/format";
import { Badge } from "../ui/notice";
import { ABILITIES, type Verdict, verdictOf } from "./list";
import { askNeed, needs } from "./local";

export function Abilities({ names }: { names: readonly string[] | undefined }) {
  return (
    <span class="abilities">
      {(names ?? []).map((name) => (
        <span key={name} data-tip={ABILITIES[name]}>
          <Badge>{name}</Badge>
        </span>
      ))}
    </span>
  );
}

const KINDS: Record<Verdict["kind"], "accent" | "warning" | "danger"> = {
  fits: "accent",
  tight: "warning",
  "too large": "danger",
};

/** Whether a model fits the memory that is left; found out when the badge comes into view. */
export function Fit({ model, inMemory }: { model: ModelTag; inMemory: boolean }) {
  const box = useRef<HTMLSpanElement>(null);
  const need = needs.value[model.digest];
  const isRemote = model.remote_host !== undefined;
  useEffect(() => {
    const element = box.current;
    if (element === null || need !== undefined || inMemory || isRemote) return;
    const watcher = new IntersectionObserver((entries) => {
      if (entries.some(({ isIntersecting }) => isIntersecting)) askNeed(model);
    });
    watcher.observe(element);
    return () => watcher.disconnect();
  }, [model.digest, need === undefined, inMemory]);

  if (isRemote) return <span class="faint">elsewhere</span>;
  if (inMemory) return <Badge kind="accent">In memory</Badge>;
  if (need === undefined) {
    return (
      <span ref={box} class="faint">
        …
      </span>
    );
  }
  const verdict = "plan" in need ? verdictOf(need.plan) : null;
  const about = verdict?.about ?? ("error" in need ? need.error : "");
  return (
    <span ref={box} data-tip={about} class="fit">
      <Badge kind={verdict ? KINDS[verdict.kind] : "plain"}>{verdict?.label ?? "Unknown"}</Badge>
      <span class="visually-hidden">{about}</span>
    </span>
  );
}

/** How long a model stays in memory. */
export function Staying({ model }: { model: RunningModel }) {
  if (model.loading !== undefined) return <>loading, {percent(model.loading)}</>;
  const left = Date.parse(model.expires_at) / 1000 - Math.max(now.value, Date.now() / 1000);
  if (!(left < 10 * 365 * 86_400)) return <>stays</>;
  return left > 0 ? <>stays {duration(left)}</> : <>leaves</>;
}
