"""Languages: text from right to left, and input methods that compose characters."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.page.chat import Chat
from tests.page.scripts import HEBREW, SUNNY, asking_for
from tests.page.sidebar import Sidebar
from tests.page.tabs import Tab

pytestmark = [pytest.mark.e2e, pytest.mark.page]


def test_text_goes_the_way_it_is_written(tab: Tab) -> None:
    chat = Chat(tab)
    chat.composer.fill("שלום")
    expect(chat.composer).to_have_css("direction", "rtl")
    chat.ask(asking_for("hebrew"))
    chat.expect_answer(HEBREW)
    expect(chat.text.locator("p")).to_have_css("direction", "rtl")
    sidebar = Sidebar(tab)
    sidebar.links.press("F2")
    sidebar.title_field.fill("שלום עולם")
    expect(sidebar.title_field).to_have_css("direction", "rtl")
    tab.press("Enter")
    expect(sidebar.links.locator(".chat-line > .grow")).to_have_css("direction", "rtl")
    expect(tab.page.locator("body")).to_have_css("direction", "ltr")
    sidebar.act("שלום עולם", "Rename")
    expect(sidebar.title_field).to_be_focused()
    tab.press("Escape")
    expect(sidebar.title_field).to_have_count(0)


def test_enter_of_an_input_method_sends_nothing(tab: Tab) -> None:
    chat = Chat(tab)
    chat.composer.click()
    keyboard = tab.page.context.new_cdp_session(tab.page)
    key = {"type": "rawKeyDown", "windowsVirtualKeyCode": 229, "key": "Process", "code": "Enter"}

    def compose(text: str) -> None:
        keyboard.send(
            "Input.imeSetComposition", {"text": text, "selectionStart": len(text), "selectionEnd": len(text)}
        )

    compose("にほn")
    compose("にほん")
    keyboard.send("Input.dispatchKeyEvent", key)
    chat.composer.dispatch_event("keydown", {"key": "Enter", "isComposing": True, "bubbles": True})
    keyboard.send("Input.insertText", {"text": "日本"})
    expect(chat.composer).to_have_value("日本")
    expect(chat.messages).to_have_count(0)
    tab.page.keyboard.insert_text(" " + asking_for("sunny"))
    tab.press("Enter")
    chat.expect_answer(SUNNY)
    expect(chat.questions).to_contain_text("日本")
