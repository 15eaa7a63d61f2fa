"""System messages in the middle of a chat stay there, whatever the template does with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from puna.chat.templates.go_chat import GoFormat
from puna.chat.templates.jinja_chat import JinjaFormat
from puna.chat.templates.messages import ChatFormat, Message, SpecialTokens, has_later_system, settled
from tests.chat.templates.conversations import TOOLS

TOKENS = SpecialTokens({"bos_token": "<s>", "eos_token": "</s>"})
#: Templates that fail in transformers too, or have no place for calls.
WITHOUT_CALLS = ("MiroThinker", "google-gemma-2-2b-it")
#: Templates that repeat their instructions after the conversation.
ENDS_WITH_INSTRUCTIONS = ("CohereForAI-c4ai-command-r-plus-tool_use",)
#: Longest beginning of an answer that a template writes into the prompt.
OPENING = 60

IN_PLACE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
HOISTING = (
    "{% for m in messages if m.role == 'system' %}{{ m.content }}\n{% endfor %}"
    "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
DROPPING = (
    "{{ messages[0].content }}\n"
    "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
REFUSING = (
    "{{ messages[0].content }}\n{% for m in messages[1:] %}{% if m.role == 'system' %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
GO_FRONT = (
    "{{ .System }}\n{{ range .Messages }}{{ if ne .Role `system` }}"
    "{{ .Role }}: {{ .Content }}\n{{ end }}{{ end }}"
)
GO_IN_PLACE = "{{ range .Messages }}{{ .Role }}: {{ .Content }}\n{{ end }}"


def agent(rounds: int) -> list[Message]:
    """Return an agent's conversation, with a system message after each result."""
    messages = [Message(role="system", content="Be brief."), Message(role="user", content="Fix it.")]
    for number in range(rounds):
        call = {"id": f"call{number:05}", "function": {"name": "get_weather", "arguments": {"city": "Lima"}}}
        messages += [
            Message(role="assistant", tool_calls=[call]),
            Message(
                role="tool",
                content=f"result {number}",
                tool_call_id=f"call{number:05}",
                tool_name="get_weather",
            ),
            Message(role="system", content=f"{9000 - number} tokens left"),
        ]
    return messages


CHAT = [
    Message(role="system", content="Be brief."),
    Message(role="user", content="Hello"),
    Message(role="system", content="Now longer."),
    Message(role="assistant", content="Hi"),
    Message(role="system", content="Brief again."),
    Message(role="user", content="Bye"),
]


def test_a_template_that_writes_system_messages_in_their_place_gets_them_unchanged() -> None:
    expected = "".join(f"{message.role}: {message.content}\n" for message in CHAT)
    assert JinjaFormat(IN_PLACE).render(CHAT) == expected


@pytest.mark.parametrize("template", [HOISTING, DROPPING, REFUSING], ids=["moves", "drops", "refuses"])
def test_other_templates_get_them_as_words_of_the_user_in_the_same_place(template: str) -> None:
    text = JinjaFormat(template).render(CHAT)
    assert text == ("Be brief.\nuser: Hello\n\nNow longer.\nassistant: Hi\nuser: Brief again.\nuser: Bye\n")


def test_leading_system_messages_are_the_templates_own_affair() -> None:
    chat = [Message(role="system", content="a"), Message(role="system", content="b"), CHAT[1]]
    assert not has_later_system(chat)
    assert JinjaFormat(HOISTING).render(chat) == "a\nb\nuser: Hello\n"


def test_a_template_of_ollamas_has_them_in_system_unless_they_are_to_stay() -> None:
    form = GoFormat(GO_FRONT)
    assert form.render(CHAT).startswith("Be brief.\n\nNow longer.\n\nBrief again.\n")
    assert form.render(CHAT, system_in_place=True) == (
        "Be brief.\nuser: Hello\n\nNow longer.\nassistant: Hi\nuser: Brief again.\n\nBye\n"
    )
    in_place = GoFormat(GO_IN_PLACE)
    assert in_place.render(CHAT, system_in_place=True) == in_place.render(CHAT)


def test_texts_after_a_result_belong_to_it_unless_the_template_has_no_results() -> None:
    messages = agent(1)
    assert settled(messages)[-1].content == "result 0\n\n9000 tokens left"
    last = settled(messages, in_results=False)[-1]
    assert (last.role, last.content) == ("user", "9000 tokens left")


@pytest.mark.slow
def test_every_published_template_keeps_the_prompt_of_the_turn_before(test_data: Path) -> None:
    compared = 0
    for path in sorted((test_data / "templates").glob("*.jinja")):
        if path.stem in WITHOUT_CALLS:
            continue
        form: ChatFormat = JinjaFormat(path.read_text(), TOKENS)
        before, now = (form.render(agent(rounds), tools=TOOLS) for rounds in (5, 6))
        assert "8997 tokens left" in now, path.name
        if path.stem not in ENDS_WITH_INSTRUCTIONS:
            assert now.startswith(before[:-OPENING]), path.name
            compared += 1
    assert compared > 35
