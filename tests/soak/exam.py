"""The right answers, recorded while the server is otherwise idle, and comparison with them."""

from __future__ import annotations

import random
import time

import httpx

from tests.soak.answers import Answer, differences
from tests.soak.asking import RefusedError, ask
from tests.soak.questions import CONTEXT, Question, all_questions, follow_ups


class Exam:
    """All questions with their right answers, as recorded by `learn`."""

    def __init__(self) -> None:
        self.questions = all_questions()
        self._answers: dict[Question, Answer] = {}

    def learn(self, http: httpx.Client) -> None:
        """Ask every question, one at a time, and record the answers."""
        for question in self.questions:
            self._learn(http, question)
        for question in follow_ups(self._answers):
            self.questions.append(question)
            self._learn(http, question)

    def _learn(self, http: httpx.Client, question: Question) -> None:
        more = {"logprobs": True} if question.native else {}
        answer = self._answers[question] = ask(http, question, **more)
        # Check that the question tests what its name says.
        if not question.name.endswith("-long"):
            assert (answer.shifted > 0) == question.name.endswith("-shift"), question.name
        assert (answer.truncated > 0) == question.name.endswith("-truncated"), question.name

    def mark(self, question: Question, answer: Answer) -> None:
        """Raise AssertionError with the differences unless the answer is right."""
        wrong = differences(self._answers[question], answer, CONTEXT)
        assert not wrong, f"wrong answer to {question.name}: " + "; ".join(wrong)

    def mark_text(self, question: Question, text: str) -> None:
        """Raise AssertionError unless the right answer starts with `text` or shifts the context."""
        right = self._answers[question]
        assert right.shifted or right.text.startswith(text), (
            f"wrong beginning of the answer to {question.name}: expected {right.text!r}, got {text!r}"
        )

    def repeat(self, http: httpx.Client, rng: random.Random, count: int | None = None) -> None:
        """Ask all questions (or `count` random ones) again, one at a time, and mark the answers."""
        chosen = self.questions if count is None else rng.sample(self.questions, count)
        for question in sorted(chosen, key=lambda question: question.model):
            self.mark(question, _ask_patiently(http, question))


def _ask_patiently(http: httpx.Client, question: Question) -> Answer:
    """Ask, and retry while the model is not reloaded because its runner was killed too often."""
    while True:
        try:
            return ask(http, question)
        except RefusedError as error:
            if error.status != 503 or "in a row" not in error.message:
                raise
            time.sleep(1.0)
