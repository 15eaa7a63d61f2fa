"""The tokens of an answer, with their probabilities and what could have stood there instead."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.e2e.servers import Server
from tests.page.chat import Chat
from tests.page.tabs import GREEDY, Visitor

pytestmark = [pytest.mark.e2e, pytest.mark.page]


@pytest.fixture
def chat(visit: Callable[..., Visitor], server: Server) -> Chat:
    """A new chat with the bundled model, of which one sees inside."""
    settings = {"options": GREEDY["options"] | {"num_predict": 24}}
    chat = Chat(visit(server, "demo:latest", {"puna.defaults": settings}).tab())
    chat.tab.press("Control+i")
    request = chat.asked(lambda: chat.ask("Tell me a story about a fox."))
    assert (request["logprobs"], request["top_logprobs"] > 1) == (True, True)
    chat.expect_rest()
    return chat


@pytest.mark.thorough
def test_tokens_add_up_to_the_answer_and_are_coloured_by_probability(chat: Chat) -> None:
    tokens = chat.answer.locator(".tokens .token")
    text = "".join(tokens.all_inner_texts()).replace("↵", "")
    colours = {(token.get_attribute("class") or "").split()[1] for token in tokens.all()}
    assert colours <= {f"p{step}" for step in range(5)}
    assert len(colours) > 1
    for token in tokens.all()[:5]:
        assert re.search(r", [\d.e-]+ %$", token.get_attribute("aria-label") or "")
    chat.tab.press("Control+i")
    shown = chat.text.inner_text()
    assert shown.split() == text.split()


def test_another_token_is_chosen_and_the_answer_branches_there(chat: Chat) -> None:
    tokens = chat.answer.locator(".tokens .token")
    before = tokens.all_inner_texts()
    tokens.nth(6).hover()
    alternatives = chat.tab.dialog("Alternatives")
    expect(alternatives.locator("[aria-current=true]")).to_contain_text("here")
    other = alternatives.locator("button:not([disabled])").first
    chosen = other.locator(".alternative-text").inner_text().replace("␣", " ").replace("↵", "\n")
    shares = [
        float(text.removeprefix("< ").removesuffix(" %"))
        for text in alternatives.locator(".numbers").all_inner_texts()
    ]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) < 101
    other.click()
    expect(chat.answer.locator(".branch-count")).to_have_text("Branch 2/2")
    chat.expect_rest()
    kept = "".join(before[:6]).replace("↵", "")
    chat.tab.press("Control+i")
    assert chat.text.inner_text().split()[:3] == (kept + chosen).split()[:3]
    whole = chat.text.inner_text().replace("\n", " ")
    assert whole.startswith((kept + chosen).replace("\n", " ").strip())


@pytest.mark.thorough
def test_tokens_and_alternatives_are_reached_by_keys(chat: Chat) -> None:
    tokens = chat.answer.locator(".tokens .token")
    tokens.first.focus()
    alternatives = chat.tab.dialog("Alternatives")
    expect(alternatives).to_be_visible()
    chat.tab.press("ArrowRight", "ArrowRight")
    expect(tokens.nth(2)).to_be_focused()
    chat.tab.press("Enter")
    expect(alternatives.locator("button:not([disabled])").first).to_be_focused()
    chat.tab.press("Escape")
    expect(alternatives).to_be_hidden()
    expect(tokens.nth(2)).to_be_focused()


@pytest.mark.thorough
def test_answer_without_probabilities_says_so(chat: Chat) -> None:
    chat.tab.reload()
    chat.tab.button("Look inside answers").click()
    expect(chat.answer).to_contain_text("probabilities of this answer were not asked for")
