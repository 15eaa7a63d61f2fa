"""The page for everyone: axe-core finds nothing on any view, keys reach all of it, nothing has to move."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.e2e.servers import Server
from tests.page.chat import Chat, answering
from tests.page.scripts import FOUR, MARKDOWN, SUNNY, asking_for
from tests.page.sidebar import Sidebar, add_chat
from tests.page.tabs import GREEDY, VIEWS, Tab, Visitor

pytestmark = [pytest.mark.e2e, pytest.mark.page]

AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: make page, or npm ci in web")
    return AXE.read_text()


def violations(tab: Tab, axe: str) -> list[str]:
    """Return what axe-core finds wrong with what the tab shows now."""
    if not tab.page.evaluate("typeof axe !== 'undefined'"):
        tab.page.evaluate(axe)
    found: list[dict[str, Any]] = tab.page.evaluate(
        "axe.run(document, { resultTypes: ['violations'] }).then((result) => result.violations)"
    )
    return [
        f"{one['id']} ({one['impact']}): {node['html'][:150]}: {node['failureSummary']}"
        for one in found
        for node in one["nodes"]
    ]


def violations_of_dialog(tab: Tab, axe: str, name: str) -> list[str]:
    """Return what is wrong while this dialog is open, and close it."""
    expect(tab.dialog(name)).to_be_visible()
    found = violations(tab, axe)
    tab.press("Escape")
    expect(tab.dialog(name)).to_be_hidden()
    return found


def chats(server: Server) -> str:
    """Fill the list of chats; returns the id of one with all kinds of messages."""
    add_chat(server, "A question", title="Pinned", pinned=True, folder="Folder", tags=["one"])
    markdown = MARKDOWN + "\n- [x] done\n\n> A quote.\n"
    return add_chat(server, "A question", markdown, title="Long", settings={"model": "scripted:latest"})


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.thorough), "dark"])
def test_no_view_violates_accessibility_rules(
    scheme: str, server: Server, visit: Callable[..., Visitor], axe: str
) -> None:
    id = chats(server)
    tab = visit(server, color_scheme=scheme).tab()
    found: dict[str, list[str]] = {}
    for place, heading in ({"#/chat": "New chat", f"#/chat/{id}": "Long"} | VIEWS).items():
        tab.show(place, heading)
        found[place] = violations(tab, axe)
    assert {place: each for place, each in found.items() if each} == {}


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.thorough)])
def test_no_state_of_a_chat_violates_accessibility_rules(
    scheme: str, server: Server, visit: Callable[..., Visitor], axe: str
) -> None:
    chats(server)
    tab = visit(server, color_scheme=scheme).tab()
    chat, found = Chat(tab), {}
    chat.settings("Prompt")
    chat.ask(asking_for("thought"))
    chat.expect_answer(FOUR)
    chat.answer.locator(".thinking-head").click()
    chat.act(chat.answer, "Answer again")
    expect(chat.answer.locator(".branch-count")).to_have_text("Branch 2/2")
    chat.expect_answer(FOUR)
    found["answer"] = violations(tab, axe)
    for part in ("Prompt", "Options", "Format", "Tools"):
        chat.settings(part)
        found[part] = violations(tab, axe)
    chat.act(chat.questions.first, "Edit")
    found["edit"] = violations(tab, axe)
    tab.press("Escape")
    tab.press("Control+i")
    chat.act(chat.answer, "Show all answers side by side")
    found["side by side"] = violations(tab, axe)
    tab.button("This chat as code").click()
    found["code"] = violations_of_dialog(tab, axe, "This chat as code")
    Sidebar(tab).act("Pinned", "Folder and tags…")
    found["dialog"] = violations_of_dialog(tab, axe, "Folder and tags")
    tab.page.evaluate("document.activeElement.blur()")
    tab.press("?")
    found["keys"] = violations_of_dialog(tab, axe, "Keyboard shortcuts")
    tab.button("Actions for Pinned").click()
    expect(tab.page.get_by_role("menu")).to_be_visible()
    found["menu"] = violations(tab, axe)
    assert {state: each for state, each in found.items() if each} == {}


@pytest.mark.thorough
def test_narrow_views_violate_no_accessibility_rules(
    server: Server, visit: Callable[..., Visitor], axe: str
) -> None:
    id = chats(server)
    tab = visit(server, viewport={"width": 360, "height": 740}).tab()
    found: dict[str, list[str]] = {}
    for place, heading in ({f"#/chat/{id}": "Long"} | VIEWS).items():
        tab.show(place, heading)
        found[place] = violations(tab, axe)
    tab.button("Show the sidebar").click()
    found["sidebar"] = violations(tab, axe)
    assert {place: each for place, each in found.items() if each} == {}


@pytest.mark.thorough
def test_engine_at_work_violates_no_accessibility_rules(
    server: Server, visit: Callable[..., Visitor], axe: str
) -> None:
    tab, found = visit(server).tab("#/engine"), {}
    with answering(server, 2):
        expect(tab.page.locator(".state-running")).to_have_count(2)
        found["pictures"] = violations(tab, axe)
        tables = tab.page.get_by_role("button", name=re.compile(" as a table$"))
        for name in [each.get_attribute("aria-label") or "" for each in tables.all()]:
            tab.button(name).click()
        expect(tab.page.get_by_role("columnheader", name="Hits")).to_be_visible()
        found["tables"] = violations(tab, axe)
    assert {state: each for state, each in found.items() if each} == {}


@pytest.mark.thorough
def test_menus_dialogs_and_tooltips_violate_no_accessibility_rules(
    server: Server, visit: Callable[..., Visitor], axe: str
) -> None:
    chats(server)
    tab, found = visit(server).tab("#/models"), {}
    menu = tab.page.get_by_role("menu")
    for action, dialog in {
        "Quantise…": "Quantise endless",
        "Copy…": "Copy endless",
        "Delete…": "Delete endless?",
    }.items():
        tab.button("Actions for endless").click()
        expect(menu).to_be_visible()
        found["menu of a model"] = violations(tab, axe)
        tab.menu(action)
        found[dialog] = violations_of_dialog(tab, axe, dialog)
    tab.show("#/settings", "Settings")
    tab.button("Delete all…").click()
    found["delete all"] = violations_of_dialog(tab, axe, "Delete all chats?")
    tab.show("#/chat", "New chat")
    chat = Chat(tab)
    for opener in (chat.root.locator(".model-button"), tab.button("Several answers")):
        opener.click()
        expect(menu).to_be_visible()
        found[f"menu {opener}"] = violations(tab, axe)
        tab.press("Escape")
        expect(menu).to_be_hidden()
    chat.compare("endless")
    expect(chat.root.locator(".model-button")).to_contain_text("and endless")
    tab.button("Settings of the chat").hover()
    expect(tab.page.locator(".tooltip")).to_be_visible()
    found["tooltip"] = violations(tab, axe)
    assert {state: each for state, each in found.items() if each} == {}


@pytest.mark.thorough
def test_sign_in_violates_no_accessibility_rules(
    servers: Callable[..., Server], visit: Callable[..., Visitor], axe: str
) -> None:
    visitor = visit(servers(PUNA_HISTORY="off"))
    visitor.forgive("401")
    visitor.context.route("**/api/puna/me", lambda route: route.fulfill(status=401, json={"error": "no key"}))
    tab = visitor.tab()
    tab.button("Sign in").click()
    expect(tab.page.get_by_role("alert")).to_be_visible()
    assert violations(tab, axe) == []


def test_whole_conversation_needs_no_mouse(tab: Tab) -> None:
    chat, sidebar = Chat(tab), Sidebar(tab)
    expect(chat.composer).to_be_focused()
    tab.page.keyboard.type(asking_for("sunny"))
    tab.press("Enter")
    chat.expect_answer(SUNNY)
    expect(chat.composer).to_be_focused()
    while chat.answer.locator(":focus").count() == 0:
        tab.press("Shift+Tab")
    while (tab.focused.get_attribute("aria-label") or "") != "Answer again":
        tab.press("Shift+Tab")
    tab.press("Enter")
    expect(chat.answer.locator(".branch-count")).to_have_text("Branch 2/2")
    chat.expect_answer(SUNNY)
    tab.press("Control+k")
    expect(sidebar.search).to_be_focused()
    tab.press("ArrowDown")
    expect(sidebar.links.first).to_be_focused()
    tab.press("Tab", "Enter")
    menu = tab.page.get_by_role("menu")
    expect(menu.get_by_role("menuitem", name="Rename")).to_be_focused()
    tab.press("ArrowDown", "Enter")
    expect(sidebar.under("Pinned")).to_have_count(1)
    tab.press("/")
    expect(chat.composer).to_be_focused()


@pytest.mark.thorough
def test_every_control_that_has_focus_shows_it(server: Server, visit: Callable[..., Visitor]) -> None:
    chats(server)
    tab = visit(server).tab("#/settings")
    tab.page.evaluate("document.activeElement?.blur()")
    seen = set()
    for _ in range(40):
        tab.press("Tab")
        name, shown = tab.page.evaluate(
            """() => {
              const element = document.activeElement;
              const style = getComputedStyle(element);
              const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
              const inParent = element.closest(":focus-within:is(.search-box, .composer)");
              const isShown = ring || style.boxShadow !== "none" || inParent !== null;
              return [element.outerHTML.slice(0, 120), isShown || element === document.body];
            }"""
        )
        assert shown, name
        seen.add(name)
    assert len(seen) > 15


@pytest.mark.thorough
def test_nothing_moves_where_that_is_not_wanted(visit: Callable[..., Visitor], server: Server) -> None:
    settings = {"options": GREEDY["options"] | {"num_ctx": 4096}}
    moving = """() => document.getAnimations().filter((each) => {
      const { duration, iterations } = each.effect.getComputedTiming();
      return duration * Math.min(iterations, 1000) > 50;
    }).map((each) => each.animationName ?? each.transitionProperty)"""
    found = {}
    for motion in ("reduce", "no-preference"):
        visitor = visit(server, "endless:latest", {"puna.defaults": settings}, reduced_motion=motion)
        chat = Chat(visitor.tab())
        chat.ask("Go on.")
        expect(chat.text).not_to_be_empty()
        found[motion] = chat.tab.page.evaluate(moving)
        chat.tab.button("Stop the answer").click()
        chat.expect_rest()
    assert found["reduce"] == []
    assert found["no-preference"] != []


@pytest.mark.thorough
def test_end_of_an_answer_is_told_to_screen_readers(tab: Tab) -> None:
    chat = Chat(tab)
    chat.ask(asking_for("sunny"))
    expect(chat.root.get_by_role("status").filter(has_text="The answer is complete.")).to_be_attached()
