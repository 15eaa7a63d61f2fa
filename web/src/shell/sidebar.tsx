import { ChatHistory } from "../history/sidebar";
import { hashOf, type ViewName } from "../state/route";
import { navigate, route } from "../state/router";
import { can, me } from "../state/session";
import { IconButton } from "../ui/button";
import { Compose, Cube, Gear, type Icon, Keyboard, Logo, Pulse, Sidebar as SidebarIcon } from "../ui/icons";
import { showKeys } from "./keys";
import { toggleSidebar, uncover } from "./layout";

function NavLink(props: { view: ViewName; label: string; icon: Icon }) {
  const { view, label, icon: Glyph } = props;
  return (
    <a
      class="nav-link"
      href={hashOf(view)}
      aria-current={route.value.view === view ? "page" : undefined}
      onClick={uncover}
    >
      <Glyph size={18} />
      {label}
    </a>
  );
}

export function newChat(): void {
  navigate("chat");
  uncover();
  document.dispatchEvent(new CustomEvent("puna:new-chat"));
}

export function Sidebar() {
  const isNewChat = route.value.view === "chat" && route.value.item === null;
  return (
    <nav id="sidebar" class="sidebar" aria-label="Chats and views">
      <div class="sidebar-head">
        <a class="brand" href={hashOf("chat")} onClick={uncover}>
          <Logo size={26} />
          Puna
        </a>
        <span class="grow" />
        <IconButton
          icon={SidebarIcon}
          label="Hide the sidebar"
          shortcut="mod+b"
          aria-expanded={true}
          aria-controls="sidebar"
          onClick={toggleSidebar}
        />
      </div>
      <div class="sidebar-nav">
        <button
          type="button"
          class="nav-link"
          aria-current={isNewChat ? "page" : undefined}
          onClick={newChat}
        >
          <Compose size={18} />
          New chat
        </button>
        <NavLink view="models" label="Models" icon={Cube} />
        {can("read") && <NavLink view="engine" label="Engine" icon={Pulse} />}
      </div>
      <div class="sidebar-history">{can("generate") && <ChatHistory />}</div>
      <div class="sidebar-foot">
        <a
          class="nav-link grow"
          href={hashOf("settings")}
          aria-current={route.value.view === "settings" ? "page" : undefined}
          onClick={uncover}
        >
          <Gear size={18} />
          <span class="truncate">Settings</span>
        </a>
        {me.value?.name && (
          <span class="faint small truncate" data-tip={`Signed in as ${me.value.name}`}>
            {me.value.name}
          </span>
        )}
        <IconButton icon={Keyboard} label="Keyboard shortcuts" shortcut="?" onClick={showKeys} />
      </div>
    </nav>
  );
}
