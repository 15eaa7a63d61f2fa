"""A chat of the page, as people use it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Locator, expect

from tests.e2e.page.runs import begin, chat_request, events
from tests.e2e.servers import Server
from tests.page.tabs import Tab
from tests.waiting import wait_until


class Chat:
    def __init__(self, tab: Tab) -> None:
        self.tab = tab
        self.root = tab.page.get_by_role("region", name="Content")

    @property
    def composer(self) -> Locator:
        """The composer, in which the next message is written."""
        return self.root.get_by_role("textbox", name="Message", exact=True)

    @property
    def messages(self) -> Locator:
        """The messages that are drawn: far from the screen there are only their places."""
        return self.root.locator("article.message")

    @property
    def questions(self) -> Locator:
        return self.root.locator("article.message.user")

    @property
    def answers(self) -> Locator:
        return self.root.locator("article.message.assistant")

    @property
    def answer(self) -> Locator:
        """The last answer."""
        return self.answers.last

    @property
    def text(self) -> Locator:
        """The text of the last answer, as Markdown shows it."""
        return self.answer.locator(".md").last

    def ask(self, question: str) -> None:
        """Send a question, and wait until it stands in the chat."""
        self.composer.fill(question)
        self.composer.press("Enter")
        expect(self.composer).to_have_value("")
        expect(self.questions.last).to_contain_text(question.strip()[:40])

    def expect_answer(self, text: str) -> None:
        """Wait until the last answer is over, and has this text in it."""
        expect(self.answer).to_contain_text(text)
        self.expect_rest()

    def expect_rest(self) -> None:
        """Wait until nothing is being answered."""
        expect(self.tab.button("Stop the answer")).to_have_count(0)
        expect(self.root.locator(".message.waiting, article[aria-busy=true]")).to_have_count(0)

    def act(self, message: Locator, action: str) -> None:
        """Press a button below a message."""
        message.hover()
        self.tab.button(action, within=message).click()

    def edit(self, message: Locator, text: str) -> None:
        """Write another version of a message and send or save it."""
        self.act(message, "Edit")
        field = self.root.get_by_role("textbox", name="Text of the message")
        field.fill(text)
        field.press("Control+Enter")
        expect(field).to_have_count(0)

    def choose_model(self, name: str) -> None:
        self.root.locator(".model-button").click()
        self.tab.menu(name)

    def compare(self, choice: str) -> None:
        """Choose how many answers there are, or which model answers beside."""
        self.tab.button("Several answers").click()
        self.tab.menu(choice)

    def settings(self, part: str) -> Locator:
        """Open a part of the chat's settings: Prompt, Options, Format or Tools."""
        button = self.tab.button("Settings of the chat")
        if button.get_attribute("aria-expanded") != "true":
            button.click()
        self.root.get_by_role("tab", name=part).click()
        return self.root.get_by_role("tabpanel")

    def set_option(self, name: str, value: str) -> None:
        """Set an option of the chat by its name in Ollama's API."""
        panel = self.settings("Options")
        panel.get_by_role("searchbox", name="Find an option").fill(name)
        row = panel.locator(".option").filter(has=self.tab.page.locator(f"code:text-is('{name}')"))
        row.locator("input, textarea").fill(value)

    def asked(self, act: Callable[[], None]) -> dict[str, Any]:
        """Return the request for an answer that `act` leads to."""
        with self.tab.page.expect_request(
            lambda request: request.method == "POST" and request.url.endswith("/api/puna/runs")
        ) as sent:
            act()
        found: dict[str, Any] = json.loads(sent.value.post_data or "")["request"]
        return found


@contextmanager
def suspended(server: Server) -> Iterator[None]:
    """The models of a server stand still for the length of the block."""
    runners = server.runners()
    for runner in runners:
        runner.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: all(runner.status() == "stopped" for runner in runners), "the stop")
        yield
    finally:
        for runner in runners:
            runner.send_signal(signal.SIGCONT)


@contextmanager
def answering(server: Server, count: int = 1, **options: int) -> Iterator[list[str]]:
    """Have `count` endless answers written while the context is open."""
    options = {"num_predict": -1, "num_ctx": 4096, **options}
    with server.http as http:
        request = chat_request("endless", "Go on with this long story, please.", options=options)
        runs = [begin(http, request)["id"] for _ in range(count)]
        for run in runs:
            reading = events(http, run)
            next(event for event in reading if event.name == "delta")
            reading.close()  # type: ignore[attr-defined]
        yield runs
        for run in runs:
            http.delete(f"/api/puna/runs/{run}")
