"""The effect of `PARSER` on a model's answers and capabilities."""

from __future__ import annotations

from typing import Any

import pytest

from puna.chat.answers.registry import PARSERS
from puna.chat.templates.choose import abilities, chat_template
from puna.chat.templates.messages import Chat, Message, Think, Traits
from puna.chat.templates.model_facts import ModelFacts
from puna.conversation.chat_model import reading_of
from puna.protocol import Generate
from tests.chat.answers.reading import Read, read, tool

TOOLS = [tool("f")]
#: Answers with thinking, for parsers with unusual tags.
OWN_TAGS = {
    "harmony": "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi",
    "gemma4": "<|channel>thought\nHm<channel|>Hi",
    "ministral": "[THINK]Hm[/THINK]Hi",
}
#: By parser of Ollama: whether its models call tools and think, and when their answers begin inside thinking.
#: From `model/parsers/` of Ollama 0.24: `HasToolSupport`, `HasThinkingSupport` and `Init`. A model that can
#: think does so unless told otherwise.
NAMED = {
    "qwen3": ("tools", "", "never"),
    "qwen3-thinking": ("tools", "thinking", "wanted"),
    "qwen3-vl-instruct": ("tools", "", "never"),
    "qwen3-vl-thinking": ("tools", "thinking", "always"),
    "qwen3-coder": ("tools", "", "never"),
    "qwen3.5": ("tools", "thinking", "wanted"),
    "harmony": ("tools", "thinking", "never"),
    "deepseek3": ("tools", "thinking", "wanted"),
    "cogito": ("tools", "thinking", "wanted"),
    "olmo3": ("tools", "", "never"),
    "olmo3-think": ("", "thinking", "always"),
    "nemotron-3-nano": ("tools", "thinking", "wanted"),
    "gemma4": ("tools", "thinking", "never"),
    "gemma4-no-thinking": ("tools", "", "never"),
    "functiongemma": ("tools", "", "never"),
    "glm-4.7": ("tools", "thinking", "wanted"),
    "glm-ocr": ("tools", "thinking", "never"),  # Ollama splits thinking off without advertising it
    "lfm2": ("tools", "", "never"),
    "lfm2-thinking": ("tools", "thinking", "wanted"),
    "laguna": ("tools", "thinking", "never"),
    "ministral": ("tools", "thinking", "never"),  # like glm-ocr
    "passthrough": ("", "", "never"),
}
#: Parsers that split thinking from the answer even if none was requested.
ALWAYS_SPLIT = {"qwen3-vl-thinking", "olmo3-think", "glm-ocr", "laguna", "ministral", "harmony"}


def parse(parser: str, answer: str, think: Think, last: str = "user", tools: Any = ()) -> Read:
    chat = Chat(messages=[Message(role=last, content="Say")], tools=list(tools))
    request = Generate(prompt=chat, parser=parser, think=think)
    how = reading_of(request, Traits(), "llama", "Say")
    return Read(text=answer) if how is None else read(how, answer)


@pytest.mark.parametrize("name", NAMED)
def test_named_parsers_behave_like_ollamas(name: str) -> None:
    tools, thinking, begins = NAMED[name]
    facts = ModelFacts(architecture="llama")
    can = abilities(facts, chat_template(facts, "{{ .Prompt }}"), parser=name).capabilities
    assert can == tuple(filter(None, ("completion", tools, thinking)))
    for think in (True, False):
        if think and not thinking:
            continue
        inside = begins == "always" or (begins == "wanted" and think)
        found = parse(name, "Hm</think>Hi", think)
        assert (found.thinking, found.text) == (("Hm", "Hi") if inside else ("", "Hm</think>Hi"))
        if begins != "never":
            assert parse(name, "Hi", think, last="assistant").text == "Hi", "it continues an answer"
        if thinking and (think or name in ALWAYS_SPLIT):
            found = parse(name, OWN_TAGS.get(name, "<think>Hm</think>Hi"), think)
            assert (found.thinking.strip(), found.text) == ("Hm", "Hi")


def test_every_parser_of_ollama_is_known() -> None:
    assert NAMED.keys() <= PARSERS.keys()


def test_cogito_does_not_start_thinking_with_tools() -> None:
    assert parse("cogito", "Hm</think>Hi", True, tools=TOOLS).thinking == ""
    assert parse("deepseek3", "Hm</think>Hi", True, tools=TOOLS).thinking == "Hm"


def test_passthrough_leaves_calls_in_the_text() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert parse("passthrough", call, None, tools=TOOLS).text == call
    assert parse("qwen3", call, None, tools=TOOLS).calls == [("f", "{}")]
