"""The list of chats at the side, as people use it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from playwright.sync_api import Locator, expect

from tests.e2e.servers import Server
from tests.page.tabs import Tab


def add_chat(server: Server, *contents: str, headers: dict[str, str] | None = None, **fields: Any) -> str:
    """Keep a chat of messages that alternate between user and assistant; returns its id."""
    changes = {name: fields.pop(name) for name in ("pinned",) if name in fields}
    with server.http as http:
        http.headers.update(headers or {})
        chat: str = http.post("/api/puna/chats", json=fields).raise_for_status().json()["id"]
        parent = None
        for at, content in enumerate(contents):
            body = {"parent": parent, "role": ("user", "assistant")[at % 2], "content": content}
            reply = http.post(f"/api/puna/chats/{chat}/messages", json=body).raise_for_status()
            parent = reply.json()["id"]
        if changes:
            http.patch(f"/api/puna/chats/{chat}", json=changes).raise_for_status()
    return chat


class Sidebar:
    def __init__(self, tab: Tab) -> None:
        self.tab = tab
        self.root = tab.page.get_by_role("navigation", name="Chats and views")

    @property
    def links(self) -> Locator:
        """The chats of the list."""
        return self.root.locator(".chat-row a")

    def expect_chats(self, titles: Sequence[str]) -> None:
        """Wait until exactly these chats are listed, in this order."""
        expect(self.links.locator(".chat-line > .grow")).to_have_text(list(titles))

    def under(self, heading: str) -> Locator:
        """The chats under a heading such as "Pinned"."""
        return self.root.get_by_role("region", name=heading).locator(".chat-row a")

    def chat(self, title: str) -> Locator:
        return self.links.filter(has_text=re.compile(re.escape(title)))

    def act(self, title: str, action: str) -> None:
        """Choose from the menu of a chat."""
        self.chat(title).hover()
        self.tab.button(f"Actions for {title}", within=self.root).click()
        self.tab.menu(action)

    @property
    def title_field(self) -> Locator:
        return self.root.get_by_role("textbox", name="Title of the chat")

    @property
    def search(self) -> Locator:
        return self.root.get_by_role("searchbox", name="Search chats")

    def filter(self, name: str) -> None:
        """Show the chats of a folder or tag."""
        self.tab.button("Show a folder or tag", within=self.root).click()
        self.tab.menu(name)
