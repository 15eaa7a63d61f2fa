import { useSignal } from "@preact/signals";
import { Component } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Message } from "../api/types";
import { Branch } from "../ui/icons";
import { hide, showBeside } from "../ui/layer";
import type { Conversation, Inside as Given } from "./conversation";
import { type Place, placesOf, probability, step, textOfAlternative } from "./tokens";

const CHUNK = 120;
const LEAVE_MS = 180;

/** The tokens of an answer, coloured by their probability, with what could have stood there instead. */
export function Inside({ chat, message, inside }: { chat: Conversation; message: Message; inside: Given }) {
  const shown = useSignal<{ index: number; element: HTMLElement } | null>(null);
  const focused = useSignal(0);
  const text = useRef<HTMLDivElement>(null);
  const leaving = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const places = placesOf(
    inside.tokens,
    { thinking: message.thinking, text: message.content },
    inside.prefix,
  );

  const tokenAt = (index: number) => text.current?.querySelector<HTMLElement>(`[data-at="${index}"]`) ?? null;
  const show = (index: number) => {
    clearTimeout(leaving.current);
    const element = tokenAt(index);
    if (element !== null && shown.value?.index !== index) shown.value = { index, element };
  };
  const leave = () => {
    clearTimeout(leaving.current);
    leaving.current = setTimeout(() => {
      shown.value = null;
    }, LEAVE_MS);
  };
  const stay = () => clearTimeout(leaving.current);
  const indexOf = (target: EventTarget | null) => {
    const at = (target as HTMLElement | null)?.closest<HTMLElement>("[data-at]")?.dataset.at;
    return at === undefined ? null : Number(at);
  };
  const go = (index: number) => {
    const to = Math.max(0, Math.min(places.length - 1, index));
    focused.value = to;
    tokenAt(to)?.focus({ preventScroll: false });
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const at = indexOf(event.target);
    if (at === null) return;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: places.length - 1 }[event.key];
    if (to !== undefined) go(to);
    else if (event.key === "ArrowDown" || event.key === "Enter") {
      document.querySelector<HTMLElement>(".alternatives button:not([disabled])")?.focus();
    } else if (event.key === "Escape" && shown.value !== null) shown.value = null;
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  useEffect(() => () => clearTimeout(leaving.current), []);

  const chunks: Place[][] = [];
  for (let at = 0; at < places.length; at += CHUNK) chunks.push(places.slice(at, at + CHUNK));
  const now = shown.value;
  const place = now === null ? undefined : places[now.index];
  return (
    <div class="inside">
      <Legend />
      {/* biome-ignore lint/a11y/useSemanticElements: tokens are a text, and a group of controls */}
      <div
        ref={text}
        class="tokens"
        dir="auto"
        role="group"
        aria-label="Tokens of the answer: arrow keys move, Enter goes to the alternatives"
        onPointerOver={(event) => {
          const at = indexOf(event.target);
          if (at !== null) show(at);
        }}
        onPointerLeave={leave}
        onFocusIn={(event) => {
          const at = indexOf(event.target);
          if (at === null) return;
          focused.value = at;
          show(at);
        }}
        onFocusOut={leave}
        onKeyDown={onKeyDown}
      >
        {inside.prefix.text !== "" && <span class="inside-prefix">{inside.prefix.text}</span>}
        {chunks.map((chunk, index) => (
          <Chunk
            key={index}
            places={chunk}
            from={index * CHUNK}
            focused={Math.floor(focused.value / CHUNK) === index ? focused.value : -1}
          />
        ))}
      </div>
      {now !== null && place !== undefined && (
        <Alternatives
          place={place}
          anchor={now.element}
          isBusy={chat.isAnswering.value}
          onEnter={stay}
          onLeave={leave}
          onClose={() => {
            go(now.index);
            shown.value = null; // the focus has shown it again
          }}
          onChoose={(alternative) => {
            shown.value = null;
            const inThought = place.part === "thinking";
            chat.branch(message, {
              thinking: inThought ? place.thinking + alternative : place.thinking,
              content: inThought ? "" : place.before + alternative,
            });
          }}
        />
      )}
    </div>
  );
}

const STEPS = ["90 % and more", "60 %", "30 %", "10 %", "less"];

const Legend = () => (
  <div class="legend faint small">
    <span>Probability of each token:</span>
    {STEPS.map((name, index) => (
      <span key={name} class={`token p${index}`}>
        {name}
      </span>
    ))}
  </div>
);

class Chunk extends Component<{ places: Place[]; from: number; focused: number }> {
  override shouldComponentUpdate(next: { places: Place[]; from: number; focused: number }): boolean {
    const now = this.props;
    return (
      next.focused !== now.focused ||
      next.places.length !== now.places.length ||
      next.places.some(
        (place, at) => place.token !== now.places[at]?.token || place.part !== now.places[at]?.part,
      )
    );
  }

  override render() {
    const { places, from, focused } = this.props;
    return (
      <span>
        {places.map((place, at) => {
          const index = from + at;
          if (place.text === "" && place.part !== "other") return null;
          const name = place.text === "" ? place.token.token : place.text;
          if (name === "") return null;
          return (
            // biome-ignore lint/a11y/useSemanticElements: a button would break the lines of the text
            <span
              key={index}
              class={`token p${step(place.token.logprob)} ${place.part}`}
              role="button"
              tabIndex={index === focused || (focused < 0 && index === 0) ? 0 : -1}
              data-at={index}
              aria-label={`${name.trim() || "space"}, ${percentOf(place.token.logprob)}`}
            >
              {place.part === "other" ? name : place.text.replaceAll("\n", "↵\n")}
            </span>
          );
        })}
      </span>
    );
  }
}

function percentOf(logprob: number): string {
  const share = probability(logprob) * 100;
  if (share < 0.1) return "< 0.1 %";
  return `${share >= 99.95 ? "100" : share.toFixed(1)} %`;
}

interface AlternativesProps {
  place: Place;
  anchor: HTMLElement;
  isBusy: boolean;
  onEnter: () => void;
  onLeave: () => void;
  onClose: () => void;
  onChoose: (text: string) => void;
}

/** What could have stood at a place, by probability. */
function Alternatives({ place, anchor, isBusy, onEnter, onLeave, onClose, onChoose }: AlternativesProps) {
  const layer = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = layer.current;
    if (element === null) return;
    showBeside(element, anchor, { side: "below", align: "start" });
    return () => hide(element);
  }, [anchor]);
  const { token } = place;
  const top = token.top ?? [];
  const isAmong = top.some((each) => each.token === token.token);
  const rows = isAmong ? top : [token, ...top];
  const onKeyDown = (event: KeyboardEvent & { currentTarget: HTMLElement }) => {
    const all = [...event.currentTarget.querySelectorAll<HTMLElement>("button:not([disabled])")];
    const at = all.indexOf(document.activeElement as HTMLElement);
    if (event.key === "ArrowDown") all[(at + 1) % all.length]?.focus();
    else if (event.key === "ArrowUp") all.at(at - 1)?.focus();
    else if (event.key === "Escape") onClose();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div
      ref={layer}
      class="layer alternatives"
      popover="manual"
      role="dialog"
      aria-label="Alternatives"
      tabIndex={-1}
      onPointerEnter={onEnter}
      onPointerLeave={onLeave}
      onFocusIn={onEnter}
      onFocusOut={onLeave}
      onKeyDown={onKeyDown}
    >
      <p class="menu-heading">{place.canBranch ? "Choose one to branch here" : "Probabilities here"}</p>
      {rows.map((each, index) => {
        const isTaken = each.token === token.token;
        const text = textOfAlternative(each);
        const shown = text === null ? each.token || "end of the answer" : visible(text);
        return (
          <button
            key={`${each.token}-${index}`}
            type="button"
            class="alternative"
            aria-current={isTaken || undefined}
            disabled={isTaken || !place.canBranch || text === null || isBusy}
            onClick={() => text !== null && onChoose(text)}
          >
            <span class="alternative-bar" style={{ inlineSize: `${probability(each.logprob) * 100}%` }} />
            <span class="alternative-text truncate mono" dir="auto">
              {shown}
            </span>
            {isTaken ? <span class="faint small">here</span> : <Branch size={14} />}
            <span class="numbers small">{percentOf(each.logprob)}</span>
          </button>
        );
      })}
    </div>
  );
}

/** Spaces and ends of lines as signs. */
const visible = (text: string) => text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥");
