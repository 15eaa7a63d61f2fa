import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { sidebarOpen } from "../state/preferences";
import { IconButton } from "../ui/button";
import { Menu, Sidebar } from "../ui/icons";
import { isNarrow, sidebarDrawn, toggleSidebar } from "./layout";

export interface TopBarProps {
  /** The name of the view, also in the browser's title. */
  title: string;
  /** Shown instead of the title, which then is only read to screen readers. */
  children?: ComponentChildren;
  /** Buttons at the end. */
  actions?: ComponentChildren;
}

export function TopBar({ title, children, actions }: TopBarProps) {
  useEffect(() => {
    document.title = title === "" || title === "Puna" ? "Puna" : `${title} – Puna`;
  }, [title]);
  const narrow = isNarrow.value;
  const hidden = narrow ? !sidebarDrawn.value : !sidebarOpen.value;
  return (
    <header class="top-bar">
      {hidden && (
        <IconButton
          icon={narrow ? Menu : Sidebar}
          label="Show the sidebar"
          shortcut="mod+b"
          aria-expanded={false}
          aria-controls="sidebar"
          onClick={toggleSidebar}
        />
      )}
      {children === undefined ? (
        <h1 class="grow truncate" dir="auto">
          {title}
        </h1>
      ) : (
        <>
          <h1 class="visually-hidden">{title}</h1>
          <div class="grow row">{children}</div>
        </>
      )}
      {actions && <div class="row">{actions}</div>}
    </header>
  );
}
