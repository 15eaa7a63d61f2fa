"""The templates of models that bring none: as those are, which such models are published with."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.prompt.choose import chat_format
from puna.prompt.defaults import default_template
from puna.prompt.format import SpecialTokens
from puna.prompt.jinja_chat import JinjaFormat
from puna.prompt.model_facts import ModelFacts
from tests.prompt.conversations import AGAIN, ANSWER, SYSTEM, USER

CHATS = [[USER], [SYSTEM, USER], [SYSTEM, USER, ANSWER, AGAIN]]


def default(architecture: str, end: str) -> str | None:
    tokens = SpecialTokens({"bos_token": "<s>", "eos_token": end}, adds_bos=True)
    form = chat_format(ModelFacts(architecture=architecture, tokens=tokens))
    return form.template if isinstance(form, JinjaFormat) else None


@pytest.mark.parametrize(
    ("architecture", "end", "file"),
    [("qwen3", "<|im_end|>", "Qwen-Qwen3-0.6B"), ("gemma2", "<end_of_turn>", "google-gemma-2-2b-it")],
)
def test_a_default_is_as_published(test_data: Path, architecture: str, end: str, file: str) -> None:
    published = JinjaFormat((test_data / "templates" / f"{file}.jinja").read_text())
    template = default(architecture, end)
    assert template is not None
    for chat in CHATS:
        assert JinjaFormat(template).render(chat) == published.render(chat)


def test_llama_3s_is_that_of_its_first_model_card() -> None:
    form = JinjaFormat(default_template("llama", "<|eot_id|>"), SpecialTokens({"bos_token": "<B>"}))
    assert form.render([SYSTEM, USER]) == (
        "<B><|start_header_id|>system<|end_header_id|>\n\nYou are terse.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHello, how are you?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_phi_3s_is_that_of_its_model_card() -> None:
    form = JinjaFormat(default_template("phi3", "<|end|>"))
    assert form.render([SYSTEM, USER]) == (
        "<|system|>\nYou are terse.<|end|>\n<|user|>\nHello, how are you?<|end|>\n<|assistant|>\n"
    )


@pytest.mark.parametrize("own", ["", "rwkv-world"])
def test_rwkvs_is_the_chat_of_its_world_models(own: str) -> None:
    tokens = SpecialTokens({"bos_token": "<s>", "eos_token": "<s>"})
    form = chat_format(ModelFacts(architecture="rwkv7", tokens=tokens, chat_template=own))
    assert form.render([SYSTEM, USER, ANSWER, AGAIN]) == (
        f"<s>System: You are terse.\n\nUser: Hello, how are you?\n\nAssistant: {ANSWER['content']}\n\n"
        f"User: {AGAIN['content']}\n\nAssistant:"
    )


@pytest.mark.parametrize(("architecture", "end"), [("llama", "</s>"), ("llama", "<|end|>"), ("x", "")])
def test_a_model_that_only_ends_texts_gets_its_prompt_as_it_is(architecture: str, end: str) -> None:
    assert default(architecture, end) is None
