"""The list of chats: order, names, folders, search, deletion, export and import."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.servers import Server
from tests.page.chat import Chat
from tests.page.sidebar import Sidebar, add_chat
from tests.page.tabs import Tab, Visitor
from tests.server.history.exchange.foreign import OPEN_WEBUI, file_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.page]


@pytest.fixture
def sidebar(server: Server, visit: Callable[..., Visitor]) -> Sidebar:
    """A list of three chats, of which Foxes is the newest."""
    add_chat(server, "How do bees fly?", "With wings.", title="Bees")
    add_chat(server, "Where do cats sleep?", "Anywhere, said the owl.", title="Cats")
    add_chat(server, "Why are foxes red?", "Nobody knows.", title="Foxes")
    return Sidebar(visit(server).tab("#/settings"))


@pytest.mark.thorough
def test_chats_are_listed_newest_first(sidebar: Sidebar) -> None:
    sidebar.expect_chats(["Foxes", "Cats", "Bees"])
    expect(sidebar.under("Today")).to_have_count(3)


@pytest.mark.thorough
def test_no_chats_are_said_to_appear_here(tab: Tab) -> None:
    expect(Sidebar(tab).root).to_contain_text("Your chats appear here.")


@pytest.mark.thorough
def test_chat_opens_from_the_list(sidebar: Sidebar) -> None:
    sidebar.chat("Cats").click()
    expect(sidebar.tab.page).to_have_title("Cats – Puna")
    expect(sidebar.chat("Cats")).to_have_attribute("aria-current", "page")


def test_chat_is_renamed_by_menu_key_and_double_click(sidebar: Sidebar) -> None:
    sidebar.act("Cats", "Rename")
    sidebar.title_field.fill("  Dogs ")
    sidebar.tab.press("Enter")
    sidebar.expect_chats(["Foxes", "Dogs", "Bees"])
    expect(sidebar.chat("Dogs")).to_be_focused()
    sidebar.tab.press("F2")
    sidebar.title_field.fill("Nothing")
    sidebar.tab.press("Escape")
    sidebar.expect_chats(["Foxes", "Dogs", "Bees"])
    sidebar.chat("Bees").dblclick()
    sidebar.title_field.fill("Wasps")
    sidebar.search.click()
    sidebar.expect_chats(["Foxes", "Dogs", "Wasps"])
    sidebar.tab.reload()
    sidebar.expect_chats(["Foxes", "Dogs", "Wasps"])


@pytest.mark.thorough
def test_pinned_chats_come_first(sidebar: Sidebar) -> None:
    sidebar.act("Bees", "Pin")
    expect(sidebar.under("Pinned")).to_have_text("Bees")
    sidebar.expect_chats(["Bees", "Foxes", "Cats"])
    sidebar.tab.reload()
    sidebar.expect_chats(["Bees", "Foxes", "Cats"])
    sidebar.act("Bees", "Unpin")
    sidebar.expect_chats(["Foxes", "Cats", "Bees"])


def test_search_finds_words_of_titles_and_messages_and_marks_them(sidebar: Sidebar) -> None:
    sidebar.search.fill("owl")
    sidebar.expect_chats(["Cats"])
    expect(sidebar.links.locator("mark")).to_have_text("owl")
    sidebar.search.fill("foxes")
    sidebar.expect_chats(["Foxes"])
    sidebar.search.fill("walrus")
    expect(sidebar.root).to_contain_text("No chat has these words.")
    sidebar.tab.press("Escape")
    sidebar.expect_chats(["Foxes", "Cats", "Bees"])
    sidebar.search.fill('"unfinished AND (')
    expect(sidebar.root).to_contain_text("No chat has these words.")


def test_folders_and_tags_narrow_the_list(sidebar: Sidebar) -> None:
    sidebar.act("Cats", "Folder and tags…")
    place = sidebar.tab.dialog("Folder and tags")
    place.get_by_label("Folder", exact=True).fill("Pets")
    place.get_by_label("Tags").fill("#soft, red")
    sidebar.tab.button("Save", within=place).click()
    sidebar.act("Foxes", "Folder and tags…")
    sidebar.tab.button("+ red", within=place).click()
    sidebar.tab.press("Control+a")
    sidebar.tab.button("Save", within=place).click()
    sidebar.filter("Pets")
    sidebar.expect_chats(["Cats"])
    sidebar.filter("red")
    sidebar.expect_chats(["Foxes", "Cats"])
    sidebar.filter("soft")
    sidebar.expect_chats(["Cats"])
    sidebar.tab.button("Show all").click()
    sidebar.expect_chats(["Foxes", "Cats", "Bees"])
    expect(sidebar.chat("Cats")).to_contain_text("Pets")


def test_deleted_chat_comes_back_by_undo(sidebar: Sidebar) -> None:
    tab = sidebar.tab
    sidebar.chat("Cats").click()
    expect(tab.page).to_have_title("Cats – Puna")
    sidebar.act("Cats", "Delete")
    sidebar.expect_chats(["Foxes", "Bees"])
    expect(tab.page).to_have_title("New chat – Puna")
    expect(tab.toasts).to_contain_text("Deleted “Cats”")
    tab.button("Undo").click()
    sidebar.expect_chats(["Foxes", "Cats", "Bees"])
    expect(tab.page).to_have_title("Cats – Puna")


@pytest.mark.thorough
def test_delete_key_deletes_and_goes_on_to_the_next_chat(server: Server, sidebar: Sidebar) -> None:
    sidebar.chat("Foxes").focus()
    sidebar.tab.press("ArrowDown", "Delete")
    sidebar.expect_chats(["Foxes", "Bees"])
    expect(sidebar.chat("Bees")).to_be_focused()
    sidebar.tab.press("Home")
    expect(sidebar.chat("Foxes")).to_be_focused()

    def kept() -> list[str]:
        return [chat["title"] for chat in server.http.get("/api/puna/chats").json()["chats"]]

    wait_until(lambda: kept() == ["Foxes", "Bees"], "the server to delete the chat")


def test_all_chats_are_deleted_only_after_a_question(server: Server, sidebar: Sidebar) -> None:
    tab = sidebar.tab
    tab.button("Delete all…").click()
    sure = tab.dialog("Delete all chats?")
    expect(tab.button("Cancel", within=sure)).to_be_focused()
    tab.press("Enter")
    expect(sure).to_be_hidden()
    sidebar.expect_chats(["Foxes", "Cats", "Bees"])
    tab.button("Delete all…").click()
    tab.button("Delete all chats", within=sure).click()
    sidebar.expect_chats([])
    assert server.http.get("/api/puna/chats").json()["chats"] == []


@pytest.mark.thorough
def test_long_list_goes_on_as_it_is_scrolled(server: Server, visit: Callable[..., Visitor]) -> None:
    for number in range(120):
        add_chat(server, title=f"Chat {number}")
    sidebar = Sidebar(visit(server).tab("#/settings"))
    expect(sidebar.links.first).to_have_text("Chat 119")
    while (seen := sidebar.links.count()) < 120:
        sidebar.links.last.scroll_into_view_if_needed()
        expect(sidebar.links.nth(seen)).to_be_attached()
    sidebar.expect_chats([f"Chat {number}" for number in reversed(range(120))])


def test_other_tabs_follow_changes_of_the_list(sidebar: Sidebar) -> None:
    other = Sidebar(sidebar.tab.visitor.tab("#/settings"))
    other.expect_chats(["Foxes", "Cats", "Bees"])
    sidebar.act("Foxes", "Delete")
    other.expect_chats(["Cats", "Bees"])
    other.act("Bees", "Pin")
    sidebar.expect_chats(["Bees", "Cats"])


@pytest.mark.thorough
def test_failed_change_is_told_and_undone(sidebar: Sidebar) -> None:
    visitor = sidebar.tab.visitor
    visitor.forgive("500")
    error = {"status": 500, "json": {"error": "the disk is full"}}
    visitor.context.route("**/api/puna/chats/*", lambda route: route.fulfill(**error))
    sidebar.act("Cats", "Delete")
    expect(sidebar.tab.toasts).to_contain_text("The chat was not deleted: the disk is full")
    sidebar.expect_chats(["Foxes", "Cats", "Bees"])


@pytest.mark.thorough
def test_chat_is_exported_as_markdown_and_json(sidebar: Sidebar) -> None:
    name, text = sidebar.tab.download(lambda: sidebar.act("Bees", "Export as Markdown"))
    assert name == "Bees.md"
    assert text.index("# Bees") < text.index("How do bees fly?") < text.index("With wings.")
    name, text = sidebar.tab.download(lambda: sidebar.act("Bees", "Export as JSON"))
    assert name == "Bees.json"
    [chat] = json.loads(text)["chats"]
    assert [message["content"] for message in chat["messages"]] == ["How do bees fly?", "With wings."]


def test_all_chats_are_exported_and_imported_again(sidebar: Sidebar, tmp_path: Path) -> None:
    tab = sidebar.tab
    name, text = tab.download(tab.button("Export all").click)
    assert name.startswith("puna-chats-")
    tab.button("Delete all…").click()
    tab.button("Delete all chats").click()
    sidebar.expect_chats([])
    file = tmp_path / name
    file.write_text(text)
    tab.choose(tab.button("Import…").click, file)
    report = tab.dialog("Import")
    expect(report).to_contain_text("3 chats imported.")
    tab.button("Done", within=report).click()
    sidebar.expect_chats(["Foxes", "Cats", "Bees"])
    sidebar.search.fill("owl")
    sidebar.expect_chats(["Cats"])


@pytest.mark.thorough
def test_export_of_open_webui_is_imported(sidebar: Sidebar, tmp_path: Path) -> None:
    tab = sidebar.tab
    file = tmp_path / "chat-export-1700000000.json"
    file.write_bytes(file_of(OPEN_WEBUI, {"title": "Odd", "mapping": 1}))
    tab.choose(tab.button("Import…").click, file)
    report = tab.dialog("Import")
    expect(report).to_contain_text("1 chat imported.")
    expect(report).to_contain_text("Odd")
    tab.button("Done", within=report).click()
    expect(sidebar.under("Pinned")).to_have_text("Owls")
    sidebar.chat("Owls").click()
    chat = Chat(tab)
    expect(chat.questions).to_contain_text("When?")
    expect(chat.questions.get_by_role("button", name="owls.txt")).to_be_visible()
    expect(chat.answer).to_contain_text("no memory")
    chat.act(chat.answer, "The branch before")
    expect(chat.text).to_contain_text("At night.")
    thought = chat.answer.locator(".thinking-head")
    thought.click()
    expect(chat.answer).to_contain_text("They & mice")


@pytest.mark.thorough
def test_file_without_chats_is_refused_with_the_reason(sidebar: Sidebar, tmp_path: Path) -> None:
    tab = sidebar.tab
    tab.visitor.forgive("400")
    file = tmp_path / "nothing.json"
    file.write_text('{"what": "is this"}')
    tab.choose(tab.button("Import…").click, file)
    expect(tab.dialog("Import").get_by_role("alert")).to_be_visible()
