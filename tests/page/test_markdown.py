"""Answers as they are shown: Markdown, code, formulas, and documents that a model wrote."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.e2e.servers import Server
from tests.page.chat import Chat
from tests.page.scripts import LONG, asking_for
from tests.page.tabs import Visitor

pytestmark = [pytest.mark.e2e, pytest.mark.page]


@pytest.fixture
def chat(visit: Callable[..., Visitor], server: Server) -> Chat:
    return Chat(visit(server, permissions=["clipboard-read", "clipboard-write"]).tab())


def test_answer_has_headings_tables_lists_and_formulas(chat: Chat) -> None:
    chat.ask(asking_for("markdown"))
    chat.expect_rest()
    text = chat.text
    expect(text.get_by_role("heading", name="A heading")).to_be_visible()
    expect(text.locator("strong")).to_have_text("strong")
    expect(text.get_by_role("table").get_by_role("row")).to_have_text(["NameSize", "one1", "two22"])
    expect(text.get_by_role("listitem")).to_have_text(["first", "second"])
    expect(text.locator(".katex")).to_have_count(2)
    expect(text.locator(".katex-display .katex-html")).to_be_visible()
    chat.tab.wait_for_font("KaTeX")


@pytest.mark.thorough
def test_links_of_answers_open_elsewhere_without_saying_where_they_were(chat: Chat) -> None:
    chat.ask(asking_for("markdown"))
    chat.expect_rest()
    link = chat.text.get_by_role("link", name="link")
    expect(link).to_have_attribute("target", "_blank")
    assert {"noopener", "noreferrer"} <= set((link.get_attribute("rel") or "").split())


def test_code_is_coloured_copied_wrapped_and_saved(chat: Chat) -> None:
    chat.ask(asking_for("markdown"))
    chat.expect_rest()
    block = chat.text.locator("figure.code")
    expect(block.locator("figcaption")).to_contain_text("Python")
    expect(block.locator(".hljs-keyword").first).to_have_text("def")
    code = "def add(a: int, b: int) -> int:\n    return a + b"
    chat.tab.button("Copy the code", within=block).click()
    chat.tab.expect_clipboard(code)
    chat.tab.button("Wrap lines", within=block).click()
    expect(block.locator("pre")).to_have_css("white-space", "pre-wrap")
    name, text = chat.tab.download(chat.tab.button("Download the code", within=block).click)
    assert (name, text.rstrip("\n")) == ("code.py", code)


def test_page_that_a_model_wrote_runs_in_a_frame_of_its_own(chat: Chat) -> None:
    chat.ask(asking_for("artefact"))
    chat.expect_rest()
    chat.tab.button("Show the result").click()
    frame = chat.text.frame_locator("iframe")
    frame.get_by_role("button", name="press me").click()
    expect(frame.get_by_role("button", name="pressed")).to_be_visible()
    chat.tab.button("Show it large").click()
    large = chat.tab.page.get_by_role("dialog").frame_locator("iframe")
    expect(large.get_by_role("button", name="press me")).to_be_visible()
    chat.tab.press("Escape")
    chat.tab.button("Show the code").click()
    expect(chat.text.locator("pre")).to_contain_text("<!doctype html>")


@pytest.mark.thorough
def test_drawing_that_a_model_wrote_is_shown(chat: Chat) -> None:
    chat.ask(asking_for("drawing"))
    chat.expect_rest()
    chat.tab.button("Show the result").click()
    expect(chat.text.frame_locator("iframe").locator("circle")).to_be_visible()


@pytest.mark.thorough
def test_growing_answer_keeps_the_parts_that_are_there(chat: Chat) -> None:
    """Blocks that were drawn are never drawn anew: a mark in the first one is there at the end."""
    chat.ask(asking_for("long"))
    first = chat.text.locator("p").first
    expect(first).to_have_text("Paragraph 1 of the long answer.")
    first.evaluate("element => { element.marked = true }")
    chat.expect_answer("Paragraph 200 of the long answer.")
    assert first.evaluate("element => element.marked")
    expect(chat.text.locator("p")).to_have_count(200)
    shown = "\n\n".join(chat.text.locator("p").all_text_contents())
    assert shown == LONG
