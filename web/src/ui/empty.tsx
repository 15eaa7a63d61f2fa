import type { ComponentChildren } from "preact";
import type { Icon } from "./icons";

/** What a list or view shows while it has nothing, and what to do about it. */
export function Empty(props: {
  icon?: Icon;
  title: string;
  children?: ComponentChildren;
  actions?: ComponentChildren;
}) {
  const { icon: Glyph, title, children, actions } = props;
  return (
    <div class="empty">
      {Glyph && (
        <span class="empty-icon">
          <Glyph size={26} />
        </span>
      )}
      <p class="empty-title">{title}</p>
      {children && <div class="empty-text">{children}</div>}
      {actions && <div class="row wrap">{actions}</div>}
    </div>
  );
}
