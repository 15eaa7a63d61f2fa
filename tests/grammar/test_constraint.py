"""Answers after thinking, forced tokens, and models without an end token."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from puna.chat.answers.family import Reading
from puna.chat.answers.parts import Tags
from puna.chat.answers.registry import FAMILIES, PARSERS, PLAIN
from puna.chat.templates.messages import Chat, Message, Traits
from puna.conversation.chat_model import reading_of
from puna.gguf import open_gguf
from puna.grammar.compiled import Grammars
from puna.grammar.constraint import Constraint
from puna.grammar.format import Format
from puna.protocol import Generate
from puna.tokenizer import Tokenizer, tokenizer_from_gguf
from tests.chat.answers.reading import read
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

TAGS = Tags("<think>", "</think>")
FORMAT = Format.regex(r"\[[0-9]{1,3}\]")


def say(constraint: Constraint, tokenizer: Tokenizer, text: str) -> bool:
    """Follow the tokens of `text` and return whether each was allowed."""
    for token in tokenizer.encode(text, add_special=False, first=False):
        if not allows(constraint, token) or not constraint.accept(token):
            return False
    return True


def allows(constraint: Constraint, token: int) -> bool:
    return bool(np.unpackbits(constraint.allowed().view(np.uint8), bitorder="little")[token])


def test_the_answer_begins_after_the_thinking(grammars: Grammars, tokenizer: Tokenizer) -> None:
    constraint = grammars.constraint(FORMAT, TAGS)
    assert say(constraint, tokenizer, "<think>\nhello {world}</thin </think>\n[12]")
    assert constraint.finished


def test_a_model_may_answer_without_thinking(grammars: Grammars, tokenizer: Tokenizer) -> None:
    constraint = grammars.constraint(FORMAT, TAGS)
    assert say(constraint, tokenizer, "[1]")
    assert constraint.finished


def test_an_answer_cannot_break_off_the_opening_tag(grammars: Grammars, tokenizer: Tokenizer) -> None:
    constraint = grammars.constraint(FORMAT, TAGS)
    assert say(constraint, tokenizer, "<thi")
    assert not say(constraint, tokenizer, "[")


def test_thinking_begun_in_the_prompt_continues(grammars: Grammars, tokenizer: Tokenizer) -> None:
    constraint = grammars.constraint(FORMAT, TAGS, begun=True)
    assert say(constraint, tokenizer, "hmm</think>[1]")
    assert constraint.finished


@pytest.mark.parametrize("parser", [name for name, named in PARSERS.items() if named.begins != "prompt"])
def test_thinking_that_begins_without_a_tag_continues(
    grammars: Grammars, tokenizer: Tokenizer, parser: str
) -> None:
    chat = Chat(messages=[Message(role="user", content="Say")])
    reading = reading_of(Generate(prompt=chat, parser=parser, think=True), Traits(), "llama", "Say")
    assert reading is not None
    assert reading.thinking is not None
    constraint = grammars.constraint_of(FORMAT, reading)
    assert constraint is not None
    assert say(constraint, tokenizer, f"hmm{reading.thinking.closing}\n[1]")
    assert constraint.finished


@pytest.mark.parametrize(
    ("family", "prompt", "before"),
    [
        (
            "harmony",
            "<|start|>assistant",
            "<|channel|>analysis<|message|>hm<|start|>assistant<|channel|>final<|message|>",
        ),
        ("solar-open", "<|begin|>assistant", "<|think|>hm<|begin|>assistant<|content|>"),
        ("solar-open", "<|begin|>assistant<|think|><|end|><|begin|>assistant", "<|content|>"),
    ],
)
def test_an_answer_of_several_messages_has_the_format_in_the_last(
    grammars: Grammars, tokenizer: Tokenizer, family: str, prompt: str, before: str
) -> None:
    # Without <|end|>, which ends whole answers of this tokenizer's model.
    reading = Reading(FAMILIES[family], FAMILIES[family].thinking, prompt)
    constraint = grammars.constraint_of(FORMAT, reading)
    assert constraint is not None
    assert say(constraint, tokenizer, f"{before}[1]")
    assert constraint.finished
    assert read(reading, [f"{before}[1]"]).text == "[1]"


def test_nothing_but_the_answer_follows_thinking(grammars: Grammars, tokenizer: Tokenizer) -> None:
    constraint = grammars.constraint(FORMAT, TAGS, begun=True)
    assert say(constraint, tokenizer, "hmm</think>\n")
    for token in tokenizer.encode("\nx1", add_special=False):
        assert not allows(constraint, token)


def test_thinking_cannot_end_the_text(grammars: Grammars, tokenizer: Tokenizer) -> None:
    constraint = grammars.constraint(FORMAT, TAGS, begun=True)
    assert say(constraint, tokenizer, "hmm")
    assert not any(allows(constraint, token) for token in tokenizer.eos_ids)


@pytest.mark.parametrize("seed", range(20))
def test_random_thinking_is_followed_by_an_answer_in_the_format(
    grammars: Grammars, tokenizer: Tokenizer, spoken: Callable[..., bytes | None], seed: int
) -> None:
    """Random tokens soon hit the closing tag and may extend beyond it."""
    tags = Tags("<", " t")
    said = spoken(grammars.constraint(FORMAT, tags), random.Random(seed), 3000)
    assert said is not None
    text = read(Reading(PLAIN, tags), [said.decode(errors="replace")]).text
    assert isinstance(json.loads(text), list)


def test_a_token_that_runs_into_a_wrong_answer_is_rejected(grammars: Grammars, tokenizer: Tokenizer) -> None:
    """The token " the" closes the thinking and continues with "he", but no answer begins with that."""
    constraint = grammars.constraint(FORMAT, Tags("<", " t"), begun=True)
    (the,) = tokenizer.encode(" the", add_special=False)
    assert allows(constraint, the)
    assert not constraint.accept(the)
    assert not allows(constraint, the)
    assert say(constraint, tokenizer, " t[1]")
    fitting = grammars.constraint(Format.regex("hey"), Tags("<", " t"), begun=True)
    assert fitting.accept(the)
    assert say(fitting, tokenizer, "y")
    assert fitting.finished


def test_a_half_consumed_answer_is_rolled_back(grammars: Grammars, tokenizer: Tokenizer) -> None:
    """The token " story" closes the thinking and says "tory"; "t", "o", "r" fit the format, "y" does not."""
    constraint = grammars.constraint(Format.regex("to(p|rn)"), Tags("<", " s"), begun=True)
    (story,) = tokenizer.encode(" story", add_special=False)
    assert len(constraint._vocabulary.tokenize_bytes(b"tory")) == 4
    assert not constraint.accept(story)
    assert say(constraint, tokenizer, " stop")
    assert constraint.finished


def test_forced_tokens_are_those_of_the_tokenizer(grammars: Grammars, tokenizer: Tokenizer) -> None:
    constraint = grammars.constraint(Format.regex("(a|b) story once upon(x|y)"))
    assert constraint.forced() == []
    assert say(constraint, tokenizer, "a")
    forced = constraint.forced()
    whole = tokenizer.encode(" story once upon", add_special=False, first=False)
    assert len(forced) >= 2
    assert forced == whole[: len(forced)]


def test_forced_texts_of_any_length_take_no_time(grammars: Grammars, tokenizer: Tokenizer) -> None:
    text = " the story" * 5_000
    constraint = grammars.constraint(Format.json_schema({"const": text}))
    forced = constraint.forced()
    assert 8 < len(forced) < 256
    assert json.dumps(text).encode().startswith(b"".join(map(tokenizer.piece, forced)))
    assert say(constraint, tokenizer, json.dumps(text[:2000])[:-1])


@pytest.mark.parametrize("said", ["", "[", "[4"])
def test_looking_ahead_changes_nothing(grammars: Grammars, tokenizer: Tokenizer, said: str) -> None:
    format = Format.regex("\\[[0-9]{1,3}(a|b|\\])")
    looking, following = grammars.constraint(format), grammars.constraint(format)
    assert say(looking, tokenizer, said)
    assert say(following, tokenizer, said)
    drafts = tokenizer.encode("[42]", add_special=False)[len(said) :]
    ahead = looking.after([*drafts, *drafts])
    assert np.array_equal(looking.allowed(), following.allowed())
    assert len(ahead) == len(drafts)
    for draft, mask in zip(drafts, ahead, strict=True):
        assert following.accept(draft)
        assert np.array_equal(mask, following.allowed())


def test_thinking_is_not_drafted(grammars: Grammars, tokenizer: Tokenizer) -> None:
    thinking = grammars.constraint(FORMAT, TAGS, begun=True)
    assert thinking.after(tokenizer.encode("hm", add_special=False)) == []


def test_a_model_without_an_end_token_ends_with_its_format(tmp_path: Path) -> None:
    path = tiny_llama_gguf(tmp_path / "endless.gguf", TinyLlama(layers=1), endless=True)
    tokenizer = tokenizer_from_gguf(open_gguf(path))
    constraint = Grammars(tokenizer).constraint(FORMAT)
    assert say(constraint, tokenizer, "[7]")
    assert constraint.finished


def test_control_tokens_do_not_match_text(grammars: Grammars, tokenizer: Tokenizer) -> None:
    constraint = grammars.constraint(Format.regex("(?s).*"))
    for id in range(tokenizer.vocab_size):
        wanted = bool(not tokenizer.is_control(id) or id in tokenizer.eos_ids)
        if tokenizer.piece(id).isascii():
            assert allows(constraint, id) == wanted
