"""A chat: questions, answers, and everything one can do with them."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from playwright.sync_api import expect

from tests.e2e.servers import Server
from tests.page.chat import Chat, suspended
from tests.page.proxy import proxied
from tests.page.scripts import FOUR, SUNNY, THOUGHT, asking_for
from tests.page.sidebar import Sidebar, add_chat
from tests.page.tabs import GREEDY, Tab, Visitor

pytestmark = [pytest.mark.e2e, pytest.mark.page]

SUN = asking_for("sunny", "How is the weather?")


@pytest.fixture
def chat(tab: Tab) -> Chat:
    return Chat(tab)


def endless(visit: Callable[..., Visitor], server: Server | str, **options: int | str) -> Chat:
    """A new chat with the model that never ends."""
    settings = {"options": GREEDY["options"] | {"num_ctx": 4096} | options}
    return Chat(visit(server, "endless:latest", {"puna.defaults": settings}).tab())


def test_question_is_answered_listed_and_found_again(chat: Chat) -> None:
    chat.ask(SUN)
    chat.expect_answer(SUNNY)
    sidebar = Sidebar(chat.tab)
    sidebar.expect_chats([SUN])
    assert re.search(r"#/chat/[0-9a-f]{16}$", chat.tab.page.url)
    chat.tab.reload()
    expect(chat.questions).to_have_text(SUN)
    chat.expect_answer(SUNNY)
    chat.tab.press("Control+Shift+O")
    expect(chat.messages).to_have_count(0)
    sidebar.chat(SUN).click()
    chat.expect_answer(SUNNY)


@pytest.mark.thorough
def test_chat_goes_on_with_what_was_said(chat: Chat) -> None:
    chat.ask(SUN)
    chat.expect_answer(SUNNY)
    request = chat.asked(lambda: chat.ask("Why?"))
    assert [(one["role"], one["content"]) for one in request["messages"]] == [
        ("user", SUN),
        ("assistant", SUNNY),
        ("user", "Why?"),
    ]


@pytest.mark.thorough
def test_shift_enter_begins_a_line_and_enter_sends(chat: Chat) -> None:
    chat.composer.click()
    chat.tab.page.keyboard.type(SUN)
    chat.tab.press("Shift+Enter")
    chat.tab.page.keyboard.type("Tell me.")
    expect(chat.composer).to_have_value(f"{SUN}\nTell me.")
    chat.tab.press("Enter")
    expect(chat.questions.locator(".written")).to_have_text(f"{SUN}\nTell me.", use_inner_text=True)
    expect(chat.composer).to_have_value("")
    chat.expect_answer(SUNNY)


@pytest.mark.thorough
def test_enter_sends_only_where_that_is_wanted(visit: Callable[..., Visitor], server: Server) -> None:
    chat = Chat(visit(server, stored={"puna.enter-sends": False}).tab())
    chat.composer.fill(SUN)
    chat.tab.press("Enter")
    expect(chat.composer).to_have_value(SUN + "\n")
    chat.tab.press("Control+Enter")
    chat.expect_answer(SUNNY)


def test_answer_grows_and_is_stopped(visit: Callable[..., Visitor], server: Server) -> None:
    chat = endless(visit, server)
    chat.ask("Go on.")
    expect(chat.text).to_have_text(re.compile(r".{20}", re.DOTALL))
    expect(chat.answer).to_have_attribute("aria-busy", "true")
    expect(Sidebar(chat.tab).root.get_by_role("img", name="Answering")).to_be_visible()
    chat.tab.button("Stop the answer").click()
    chat.expect_answer("Stopped.")
    expect(Sidebar(chat.tab).root.get_by_role("img", name="Answering")).to_have_count(0)
    shown = chat.text.inner_text()
    chat.tab.reload()
    chat.expect_answer("Stopped.")
    assert chat.text.inner_text() == shown


@pytest.mark.thorough
def test_escape_stops_the_answer(visit: Callable[..., Visitor], server: Server) -> None:
    chat = endless(visit, server)
    chat.ask("Go on.")
    expect(chat.text).not_to_be_empty()
    expect(chat.composer).to_be_focused()
    chat.tab.press("Escape")
    chat.expect_answer("Stopped.")


def test_cut_answer_is_continued_where_it_ends(visit: Callable[..., Visitor], server: Server) -> None:
    chat = endless(visit, server, num_predict=12)
    chat.ask("Go on.")
    chat.expect_answer("Cut after 12 tokens")
    first = chat.text.inner_text()
    chat.tab.button("Continue").click()
    expect(chat.answer.locator(".branch-count")).to_have_text("Branch 2/2")
    chat.expect_rest()
    longer = chat.text.inner_text()
    assert longer.startswith(first.rstrip())
    assert len(longer) > len(first)


def test_answers_and_questions_branch_and_arrows_go_between_them(chat: Chat) -> None:
    chat.ask(SUN)
    chat.expect_answer(SUNNY)
    chat.act(chat.answer, "Answer again")
    expect(chat.answer.locator(".branch-count")).to_have_text("Branch 2/2")
    chat.expect_answer(SUNNY)
    chat.edit(chat.questions.first, asking_for("thought", "How much is 2 + 2?"))
    chat.expect_answer(FOUR)
    expect(chat.questions.locator(".branch-count")).to_have_text("Branch 2/2")
    chat.act(chat.questions.first, "The branch before")
    expect(chat.questions).to_contain_text("How is the weather?")
    expect(chat.answer).to_contain_text(SUNNY)
    expect(chat.answer.locator(".branch-count")).to_have_text("Branch 2/2")
    chat.act(chat.answer, "The branch before")
    expect(chat.answer.locator(".branch-count")).to_have_text("Branch 1/2")
    chat.tab.reload()
    expect(chat.answer.locator(".branch-count")).to_have_text("Branch 1/2")
    expect(chat.questions.locator(".branch-count")).to_have_text("Branch 1/2")


@pytest.mark.thorough
def test_answer_is_edited_and_the_chat_goes_on_from_it(chat: Chat) -> None:
    chat.ask(SUN)
    chat.expect_answer(SUNNY)
    chat.edit(chat.answer, "It rains.")
    expect(chat.text).to_have_text("It rains.")
    expect(chat.answer.locator(".branch-count")).to_have_text("Branch 2/2")
    request = chat.asked(lambda: chat.ask("Why?"))
    assert request["messages"][1]["content"] == "It rains."


def test_several_answers_stand_side_by_side_and_one_is_chosen(
    visit: Callable[..., Visitor], server: Server
) -> None:
    settings = {"options": {"temperature": 1, "seed": 1, "num_predict": 12}}
    chat = Chat(visit(server, "endless:latest", {"puna.defaults": settings}).tab())
    chat.compare("3 side by side")
    chat.ask("Go on.")
    expect(chat.answers).to_have_count(3)
    chat.expect_rest()
    texts = [answer.locator(".md").inner_text() for answer in chat.answers.all()]
    assert len(set(texts)) == 3
    beside = chat.root.locator(".beside-answer")
    chat.tab.button("Choose", within=beside.nth(1)).click()
    expect(chat.tab.button("Chosen", within=beside.nth(1))).to_be_visible()
    chat.tab.button("Show the chosen one alone").click()
    expect(chat.answers).to_have_count(1)
    assert chat.text.inner_text() == texts[1]
    expect(chat.answer.locator(".branch-count")).to_have_text("Branch 2/3")
    chat.act(chat.answer, "Show all answers side by side")
    expect(chat.answers).to_have_count(3)


@pytest.mark.thorough
def test_two_models_answer_side_by_side(visit: Callable[..., Visitor], server: Server) -> None:
    settings = {"options": GREEDY["options"] | {"num_predict": 8}}
    chat = Chat(visit(server, "endless:latest", {"puna.defaults": settings}).tab())
    chat.compare("scripted")
    chat.ask(SUN)
    expect(chat.answers).to_have_count(2)
    chat.expect_rest()
    expect(chat.root.locator(".beside-answer-head").nth(0)).to_contain_text("endless")
    expect(chat.root.locator(".beside-answer-head").nth(1)).to_contain_text("scripted")
    expect(chat.answers.nth(1)).to_contain_text(SUNNY[:10])


@pytest.mark.thorough
def test_thinking_is_folded_with_its_time(chat: Chat) -> None:
    chat.ask(asking_for("thought"))
    chat.expect_answer(FOUR)
    thought = chat.answer.get_by_role("button", name=re.compile(r"^Thought for \d"))
    expect(chat.answer).not_to_contain_text(THOUGHT)
    thought.click()
    expect(chat.answer).to_contain_text(THOUGHT)
    expect(thought).to_have_attribute("aria-expanded", "true")
    chat.tab.reload()
    expect(thought).to_have_attribute("aria-expanded", "false")


@pytest.mark.thorough
def test_thinking_is_switched_off_and_left_out(chat: Chat) -> None:
    chat.tab.button("Thinking: As the model does").click()
    chat.tab.menu("Off")
    request = chat.asked(lambda: chat.ask(SUN))
    assert request["think"] is False
    chat.expect_answer(SUNNY)


TOOL = """\
[{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters":
 {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "number"}}}}}]
"""


def test_called_tool_is_shown_and_its_result_goes_back(chat: Chat) -> None:
    chat.settings("Tools").get_by_label("Tools", exact=True).fill(TOOL)
    request = chat.asked(lambda: chat.ask(asking_for("call")))
    assert request["tools"][0]["function"]["name"] == "get_weather"
    called = chat.answer.get_by_role("region", name="Call of get_weather")
    expect(called).to_contain_text('"city": "Lima"')
    chat.expect_rest()
    chat.root.get_by_label("Result of get_weather").fill(f"{SUN} sunny")

    def send() -> None:
        chat.tab.button("Send the result").click()

    sent = chat.asked(send)["messages"][-1]
    assert (sent["role"], sent["content"], sent["tool_name"]) == ("tool", f"{SUN} sunny", "get_weather")
    expect(chat.root.locator("article.tool")).to_contain_text("sunny")
    expect(chat.answers).to_have_count(2)


@pytest.mark.thorough
def test_answer_has_its_speed_and_the_context_its_bar(visit: Callable[..., Visitor], server: Server) -> None:
    chat = endless(visit, server, num_predict=12)
    chat.ask("Go on.")
    chat.expect_rest()
    expect(chat.answer.locator(".stats")).to_contain_text(re.compile(r"\d tokens/s"))
    expect(chat.answer.locator(".stats")).to_contain_text("to the first")
    bar = chat.root.get_by_role("img", name=re.compile("tokens of the context"))
    expect(bar).to_have_attribute("aria-label", re.compile(r"^\d+ of 4,096 tokens of the context are used"))
    chat.ask("More.")
    chat.expect_rest()
    expect(chat.answer.locator(".stats")).to_contain_text("cached")
    expect(bar).not_to_have_attribute("aria-label", re.compile("0 came from the cache"))


@pytest.mark.thorough
def test_answer_has_the_share_of_its_drafts_that_was_accepted(
    visit: Callable[..., Visitor], server: Server
) -> None:
    chat = endless(visit, server, speculate="prompt", num_predict=600)
    chat.ask("Go on.")  # it repeats itself
    chat.expect_answer("Cut after 600 tokens")
    id = chat.tab.page.url.rpartition("/")[2]
    stats = server.http.get(f"/api/puna/chats/{id}").json()["messages"][1]["stats"]
    assert stats["drafted"] > 0
    share = re.compile(r"(\d+(?:\.\d+)?) % of drafts accepted")
    expect(chat.answer.locator(".stats")).to_contain_text(share)
    [shown] = share.findall(chat.answer.locator(".stats").inner_text())
    assert float(shown) == pytest.approx(100 * stats["accepted"] / stats["drafted"], abs=0.5)


@pytest.mark.thorough
def test_model_names_chats_once_that_is_wanted(chat: Chat) -> None:
    sidebar = Sidebar(chat.tab)
    chat.ask(SUN)
    chat.expect_answer(SUNNY)
    sidebar.expect_chats([SUN])
    chat.tab.show("#/settings", "Settings")
    chat.tab.page.get_by_role("switch", name="Let the model name chats").check()
    chat.tab.press("Control+Shift+O")
    question = asking_for("thought", "How much is 2 + 2?")
    chat.ask(question)
    chat.expect_answer(FOUR)
    # The request for a name has no trigger, so the model says its first text.
    sidebar.expect_chats([SUNNY, SUN])
    chat.tab.reload()
    expect(chat.tab.heading).to_have_text(SUNNY)


@pytest.mark.thorough
def test_warnings_of_the_server_stand_at_the_answer(visit: Callable[..., Visitor], server: Server) -> None:
    chat = endless(visit, server, num_predict=4, num_ctx=256)
    chat.ask("word " * 400)
    expect(chat.answer).to_contain_text("tokens of its beginning were left out")


def _begun(event: bytes) -> bytes:
    """Return an event of progress that says 1 is done: a busy server tells only of a small model's end."""
    return re.sub(rb'(?<="done":)\d+', lambda number: b"1".ljust(len(number[0])), event)


def test_loading_and_reading_of_a_long_prompt_are_shown(
    visit: Callable[..., Visitor], server: Server, outlasting: ExitStack
) -> None:
    server.unload()
    proxy = outlasting.enter_context(proxied(server.url))
    chat = endless(visit, proxy.url, num_predict=4, num_ctx=8192, num_batch=64)
    progress = chat.answer.locator(".run-progress")
    loading = proxy.hold_events("load", _begun)
    chat.ask("word " * 1500)
    expect(progress).to_have_text("Loading endless, 0 %")
    expect(progress.get_by_role("progressbar", name="Loading endless")).to_be_visible()
    loading.open()
    chat.expect_answer("Cut after 4 tokens")
    reading = proxy.hold_events("prompt")
    chat.ask("another " * 1500)
    expect(progress).to_have_text(re.compile(r"^Reading the prompt, [\d,]+ of [\d,]+ tokens"))
    expect(progress.get_by_role("progressbar", name="Reading the prompt")).to_be_visible()
    reading.open()
    chat.expect_answer("Cut after 4 tokens")


def test_answer_of_a_deleted_model_fails_and_another_model_takes_over(
    visit: Callable[..., Visitor], server: Server
) -> None:
    server.client.copy("scripted", "doomed")
    visitor = visit(server, "doomed:latest")
    visitor.forgive("404")
    chat = Chat(visitor.tab())
    chat.ask(SUN)
    chat.expect_answer(SUNNY)
    server.client.delete("doomed")
    chat.ask(asking_for("thought"))
    expect(chat.root).to_contain_text("doomed:latest")
    expect(chat.root).to_contain_text("not found")
    chat.choose_model("scripted")
    chat.tab.button("Try again").click()
    chat.expect_answer(FOUR)


@pytest.mark.thorough
def test_draft_outlives_a_reload_and_belongs_to_its_chat(server: Server, chat: Chat) -> None:
    add_chat(server, "A question", "An answer", title="Other")
    chat.composer.fill("half a tho")
    chat.tab.reload()
    expect(chat.composer).to_have_value("half a tho")
    Sidebar(chat.tab).chat("Other").click()
    expect(chat.tab.page).to_have_title("Other – Puna")
    expect(chat.composer).to_have_value("")
    chat.tab.page.go_back()
    expect(chat.composer).to_have_value("half a tho")


@pytest.mark.thorough
def test_question_without_an_answer_gets_one(server: Server, visit: Callable[..., Visitor]) -> None:
    id = add_chat(server, SUN, settings={"model": "scripted:latest", **GREEDY})
    chat = Chat(visit(server).tab(f"#/chat/{id}"))
    expect(chat.root).to_contain_text("There is no answer yet.")
    chat.tab.button("Get an answer").click()
    chat.expect_answer(SUNNY)


@pytest.mark.thorough
def test_message_is_copied(visit: Callable[..., Visitor], server: Server) -> None:
    visitor = visit(server, permissions=["clipboard-read", "clipboard-write"])
    chat = Chat(visitor.tab())
    chat.ask(SUN)
    chat.expect_answer(SUNNY)
    chat.act(chat.answer, "Copy")
    chat.tab.expect_clipboard(SUNNY)


@pytest.mark.thorough
def test_model_is_chosen_for_the_next_answer(chat: Chat) -> None:
    chat.ask(SUN)
    chat.expect_answer(SUNNY)
    chat.choose_model("endless")
    chat.set_option("num_predict", "4")
    request = chat.asked(lambda: chat.ask("Go on."))
    assert request["model"] == "endless:latest"
    chat.expect_rest()
    expect(chat.answer.locator(".message-head")).to_have_text("endless")


@pytest.mark.thorough
def test_chat_that_is_gone_says_so(visit: Callable[..., Visitor], server: Server) -> None:
    visitor = visit(server)
    visitor.forgive("404")
    tab = visitor.tab("#/chat/0123456789abcdef")
    expect(tab.page.get_by_text("This chat is not there")).to_be_visible()


@pytest.mark.thorough
def test_reader_above_is_left_where_they_read(visit: Callable[..., Visitor], server: Server) -> None:
    turns = [f"A long line of text, number {number}. " * 20 for number in range(40)]
    id = add_chat(server, *turns, settings={"model": "endless:latest", **GREEDY})
    chat = Chat(visit(server).tab(f"#/chat/{id}"))
    scroll = chat.root.get_by_role("region", name="Conversation")
    chat.ask("Go on.")
    expect(chat.text).not_to_be_empty()
    scroll.hover()
    chat.tab.page.mouse.wheel(0, -1500)
    expect(chat.tab.button("To the end")).to_be_visible()
    with suspended(server):
        before = scroll.evaluate("element => element.scrollTop")
    length = len(chat.text.inner_text())
    expect(chat.text).to_have_text(re.compile(rf".{{{length + 50}}}", re.DOTALL))
    assert scroll.evaluate("element => element.scrollTop") <= before
    chat.tab.button("To the end").click()
    expect(chat.tab.button("To the end")).to_have_count(0)
    chat.tab.button("Stop the answer").click()
    chat.expect_rest()
