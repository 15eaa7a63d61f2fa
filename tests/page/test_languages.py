"""Languages: text from right to left, and input methods that compose characters."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from tests.page.chat import Chat
from tests.page.scripts import HEBREW, SUNNY, asking_for
from tests.page.sidebar import Sidebar
from tests.page.tabs import Tab

pytestmark = [pytest.mark.e2e, pytest.mark.page]


def direction(part: Locator) -> str:
    found: str = part.evaluate("element => getComputedStyle(element).direction")
    return found


def test_text_goes_the_way_it_is_written(tab: Tab) -> None:
    chat = Chat(tab)
    chat.composer.fill("שלום")
    assert direction(chat.composer) == "rtl"
    chat.ask(asking_for("hebrew"))
    chat.expect_answer(HEBREW)
    assert direction(chat.text.locator("p")) == "rtl"
    sidebar = Sidebar(tab)
    sidebar.links.press("F2")
    sidebar.title_field.fill("שלום עולם")
    assert direction(sidebar.title_field) == "rtl"
    tab.press("Enter")
    assert direction(sidebar.links.locator(".chat-line > .grow")) == "rtl"
    assert direction(tab.page.locator("body")) == "ltr"
    sidebar.act("שלום עולם", "Rename")
    tab.press("Escape")


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
