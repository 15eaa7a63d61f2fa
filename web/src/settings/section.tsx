import type { ComponentChildren } from "preact";

export function Section(props: { name: string; title: string; children: ComponentChildren }) {
  return (
    <section id={`settings-${props.name}`} class="settings-section" aria-label={props.title}>
      <h2>{props.title}</h2>
      <div class="card">{props.children}</div>
    </section>
  );
}

export function Setting(props: { title: string; hint?: ComponentChildren; children: ComponentChildren }) {
  return (
    <div class="setting">
      <div class="setting-text">
        <h3>{props.title}</h3>
        {props.hint && <p class="field-hint">{props.hint}</p>}
      </div>
      <div class="setting-control">{props.children}</div>
    </div>
  );
}
