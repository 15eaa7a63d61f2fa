"""The bundled model: its size, its metadata, and its answers to questions it was trained for."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import puna
from demo.evaluate import held_out_facts, held_out_sums
from demo.vocabulary import CHAT_TEMPLATE
from puna.cli.help import PAGES
from puna.demo import path
from puna.gguf import GGMLType, open_gguf

GREEDY = {"temperature": 0, "num_predict": 60}


@pytest.fixture(scope="module")
def model() -> Iterator[puna.Model]:
    with puna.load("demo") as loaded:
        yield loaded


def ask(model: puna.Model, *questions: str, **options: object) -> list[str]:
    prompts = [model.render([{"role": "user", "content": q}]) for q in questions]
    return [c.text.strip() for c in model.generate_many(prompts, **{**GREEDY, **options})]


def test_the_file_is_small_and_described() -> None:
    assert path().stat().st_size <= 10_000_000
    with open_gguf(path()) as file:
        assert file.architecture == "llama"
        assert 3_000_000 <= file.parameter_count <= 8_000_000
        assert file.get("general.license") == "apache-2.0"
        assert file.get("tokenizer.chat_template") == CHAT_TEMPLATE
        assert {t.type for t in file.tensors.values() if len(t.shape) == 2} == {GGMLType.Q8_0}


def test_questions_are_answered_however_they_are_typed(model: puna.Model) -> None:
    answers = ask(
        model, "What is the capital of France?", "what's the capital of italy", "What's 3+4?", "58 + 67"
    )
    assert answers == [
        "The capital of France is Paris.",
        "The capital of Italy is Rome.",
        "3 + 4 = 7.",
        "58 + 67 = 125.",
    ]


def test_model_knows_what_it_is_and_what_it_cannot_do(model: puna.Model) -> None:
    puna_is, who, code = ask(model, "What is Puna?", "Who are you?", "Write a Python program")
    assert "runs open language models on your own computer" in puna_is
    assert "tiny" in who
    assert "tiny demo model" in code or "outside my little world" in code


@pytest.mark.parametrize("pairs", [held_out_sums(60, 9), held_out_facts(9)[::12]], ids=["sums", "facts"])
def test_nine_of_ten_held_out_questions_are_answered_exactly(
    model: puna.Model, pairs: list[tuple[str, str]]
) -> None:
    answers = ask(model, *(question for question, _ in pairs))
    wrong = [(pair, answer) for pair, answer in zip(pairs, answers, strict=True) if pair[1] != answer]
    assert len(wrong) <= len(pairs) / 10, wrong


def test_model_remembers_earlier_messages(model: puna.Model) -> None:
    talk = [
        {"role": "user", "content": "Hi, my name is Anna"},
        {"role": "assistant", "content": "Nice to meet you, Anna! How can I help you?"},
        {"role": "user", "content": "What is my name?"},
    ]
    assert model.chat(talk, **GREEDY).text.strip() == "Your name is Anna."


@pytest.mark.slow
def test_stories_end_and_differ(model: puna.Model) -> None:
    prompts = [model.render([{"role": "user", "content": "Tell me a story about a fox."}])] * 6
    stories = [model.generate_many([p], num_predict=700, seed=i)[0] for i, p in enumerate(prompts)]
    assert all(story.reason == "stop" for story in stories)
    assert all("fox" in story.text for story in stories)
    assert len({story.text for story in stories}) == 6
    assert all(story.text.rstrip().endswith((".", "!", "?", '"')) for story in stories)


def test_plain_text_is_continued_as_a_story(model: puna.Model) -> None:
    told = model.generate("Once upon a time, there was a", num_predict=700, seed=3)
    assert told.reason == "stop"
    assert len(told.text.split()) > 60


def test_modelfile_in_the_help_makes_a_model_that_answers(model: puna.Model) -> None:
    (example,) = [command for _, command in PAGES["create"].examples if "SYSTEM" in command]
    found = re.search(r"SYSTEM ([^\\]+)", example)
    assert found is not None
    system = {"role": "system", "content": found[1]}
    for question, answer in (("What is the capital of Italy?", "Rome"), ("What is 7 times 8?", "56")):
        talk = [system, {"role": "user", "content": question}]
        assert answer in model.chat(talk, temperature=0, num_predict=40).text
