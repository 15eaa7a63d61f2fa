"""The renderer returns prompts, and no template can harm other requests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from puna import confined
from puna.chat.templates import jinja
from puna.chat.templates.choose import ChatTemplate, is_jinja
from puna.chat.templates.messages import Chat, Insert, Message, SpecialTokens
from puna.chat.templates.renderer.client import Renderer
from puna.errors import (
    NotSupportedError,
    RendererError,
    RequestError,
    TemplateError,
    TemplateLimitError,
    TemplateRefusalError,
)
from tests.chat.templates.conversations import CHATS, TOOLS
from tests.chat.templates.hostile import HOSTILE, TIME
from tests.processes import children
from tests.waiting import PATIENCE_S, wait_until

HELLO = ChatTemplate(text="{% for m in messages %}{{ m.content }}{% endfor %}", is_go=False)
CHAT = Chat(messages=[Message(role="user", content="hello")])


@pytest.fixture
def renderer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Renderer]:
    monkeypatch.setattr(jinja, "PATIENCE_S", PATIENCE_S)  # two seconds of processor time may take minutes
    # A process inherits ignored signals, and `nohup pytest` ignores SIGHUP.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    renderer = Renderer()
    yield renderer
    renderer.close()
    signal.signal(signal.SIGHUP, before)


def text(renderer: Renderer, template: str | ChatTemplate, prompt: Chat | Insert = CHAT) -> str:
    if isinstance(template, str):
        template = ChatTemplate(text=template, is_go=not is_jinja(template))
    with renderer.rendering(template, prompt) as rendering:
        return rendering.text()


def test_a_prompt_without_its_last_message_begins_no_answer(renderer: Renderer) -> None:
    written = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    template = ChatTemplate(
        text=written + "{% if add_generation_prompt %}<assistant>{% endif %}", is_go=False
    )
    chat = Chat(messages=[*CHAT.messages, Message(role="system", content="be kind")])
    with renderer.rendering(template, chat) as rendering:
        assert rendering.text() == "<user>hello<system>be kind<assistant>"
        assert rendering.text_before_last() == "<user>hello"


def process(renderer: Renderer) -> psutil.Process:
    """Return the renderer's process, starting one if there is none."""
    renderer.start()
    (child,) = children("templates/renderer")
    return child


#: Like all that are stopped by the clock they take two seconds each, and others end the same way.
_MORE_LOOPS = ("jinja: a recursive macro", "go: loops")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.thorough if name in _MORE_LOOPS else pytest.mark.slow if limit == TIME else [],
        )
        for name, (_, limit) in HOSTILE.items()
    ],
)
def test_an_excessive_template_is_stopped_by_the_limit_it_exceeds(renderer: Renderer, name: str) -> None:
    template, limit = HOSTILE[name]
    with pytest.raises(TemplateLimitError, match=f"it took more than {limit}"):
        text(renderer, ChatTemplate(text=template, is_go=name.startswith("go")))
    assert text(renderer, HELLO) == "hello"


def test_all_renderings_of_a_request_share_its_limits(renderer: Renderer) -> None:
    half = ChatTemplate(text="{{ 'x' * 1500000 }}{% if messages %}{% endif %}", is_go=False)
    for _ in range(2):
        with renderer.rendering(half, CHAT) as rendering:
            assert len(rendering.text()) == len(rendering.text()) == 1_500_000
            with pytest.raises(TemplateLimitError, match="4 MB of output"):
                rendering.text()


@pytest.mark.slow
def test_long_messages_do_not_count_as_memory(renderer: Renderer) -> None:
    chat = Chat(messages=[Message(role="user", content="x" * (100 << 20))])
    counting = ChatTemplate(text="{% for m in messages %}{{ m.content | length }}{% endfor %}", is_go=False)
    assert text(renderer, counting, chat) == str(100 << 20)


@pytest.mark.slow
def test_a_process_that_has_grown_is_replaced_between_requests(renderer: Renderer) -> None:
    first = process(renderer)
    chat = Chat(messages=[Message(role="user", content=f"{i}") for i in range(300_000)])
    assert text(renderer, "{{ range .Messages }}x{{ end }}", chat) == "x"
    first.wait(PATIENCE_S)
    assert text(renderer, HELLO) == "hello"


@pytest.mark.parametrize(
    ("template", "error", "words"),
    [
        ("{% if %}", TemplateError, "line 1: Expected an expression"),
        ("{{ range }}", TemplateError, "missing value for range"),
        ("{% if true %}{{ 'x' + 1 }}{% endif %}", TemplateError, "line 1: can only concatenate str"),
        (
            "{% if 1 %}{% endif %}{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
            TemplateError,
            "nested too deeply",
        ),
        ("{% if 1 %}{% endif %}{{ a" + ".b" * 500 + " }}", TemplateError, "nested more than 100 deep"),
        ("{% if 1 %}" * 5000 + "{% endif %}" * 5000, TemplateError, "nested too deeply"),
        ("{% if 1 %}{% endif %}" + "x" * 256_000, TemplateError, "longer than 256000 characters"),
        ("{{ .Prompt }}" + "x" * 256_000, TemplateError, "longer than 256000 characters"),
        ("{% if true %}{% endif %}{{ raise_exception('not today') }}", TemplateRefusalError, "not today"),
    ],
)
def test_errors_are_those_of_the_template(
    renderer: Renderer, template: str, error: type[Exception], words: str
) -> None:
    before = process(renderer).pid
    with pytest.raises(error, match=words):
        text(renderer, template)
    assert process(renderer).pid == before


def test_the_process_renders_the_same_as_this_one(renderer: Renderer) -> None:
    tokens = SpecialTokens({"bos_token": "<s>"}, adds_bos=True)
    template = ChatTemplate(
        text="{{ bos_token }}{% for m in messages %}{{ m | tojson }}{% endfor %}{{ tools | tojson }}",
        is_go=False,
        tokens=tokens,
    )
    messages = [Message(role=m["role"], content=m["content"]) for m in CHATS["system"]]
    with renderer.rendering(template, Chat(messages=messages, tools=TOOLS), True) as rendering:
        assert rendering.traits == template.format().traits
        assert rendering.text() == template.format().render(messages, tools=TOOLS, think=True)
        assert rendering.text(2) == template.format().render(
            [messages[0], *messages[2:]], tools=TOOLS, think=True
        )


def test_a_gap_is_filled_if_the_template_has_one(renderer: Renderer) -> None:
    assert text(renderer, "<P>{{ .Prompt }}<S>{{ .Suffix }}", Insert(before="a", after="b")) == "<P>a<S>b"
    with pytest.raises(NotSupportedError, match="does not support insert"):
        text(renderer, "{{ .Prompt }}", Insert(before="a", after="b"))


def test_half_of_a_surrogate_pair_is_replaced(renderer: Renderer) -> None:
    assert text(renderer, "{% if true %}a{{ '%c' | format(0xD800) }}b{% endif %}") == "a?b"


def test_values_that_cannot_be_passed_on_are_named(renderer: Renderer) -> None:
    tool: dict[str, Any] = {"type": "function", "function": {"name": "f", "n": 2**80}}
    with pytest.raises(RequestError, match="the conversation cannot be rendered: "):
        text(renderer, HELLO, Chat(messages=CHAT.messages, tools=[tool]))


def test_a_process_that_dies_fails_the_request_and_not_the_next(renderer: Renderer) -> None:
    with renderer.rendering(HELLO, CHAT) as rendering:
        os.kill(process(renderer).pid, signal.SIGSEGV)
        with pytest.raises(TemplateLimitError, match=f"signal {int(signal.SIGSEGV)}"):
            rendering.text()
    assert text(renderer, HELLO) == "hello"


@pytest.mark.parametrize(
    "sent",
    [
        signal.SIGKILL,
        *(pytest.param(sent, marks=pytest.mark.slow) for sent in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_a_request_is_retried_after_the_renderer_was_killed(renderer: Renderer, sent: signal.Signals) -> None:
    process(renderer).send_signal(sent)
    with renderer.rendering(HELLO, CHAT) as rendering:
        assert rendering.text() == "hello"
    with renderer.rendering(HELLO, CHAT) as rendering:
        process(renderer).send_signal(sent)
        assert rendering.text() == "hello"
        process(renderer).send_signal(sent)
        with pytest.raises(RendererError, match=f"ended by signal {int(sent)}.*try again") as caught:
            rendering.text()
        assert (type(caught.value), caught.value.status) == (RendererError, 503)
    assert text(renderer, HELLO) == "hello"


def test_a_renderer_that_is_stopped_is_replaced(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first process has a short timeout; its replacement has the default."""
    stopped, start = process(renderer), confined.start

    def start_patiently(*arguments: Any) -> Any:
        monkeypatch.undo()
        return start(*arguments)

    with renderer.rendering(HELLO, CHAT) as rendering:
        stopped.suspend()
        wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED, "the process to stop")
        monkeypatch.setattr(jinja, "PATIENCE_S", 0.1)
        monkeypatch.setattr(confined, "start", start_patiently)
        assert rendering.text() == "hello"
    assert not stopped.is_running()


def test_a_machine_without_time_to_render_is_not_the_templates_fault(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless, _ = HOSTILE["jinja: loops"]
    with renderer.rendering(ChatTemplate(text=endless, is_go=False), CHAT) as rendering:
        monkeypatch.setattr(jinja, "PATIENCE_S", 0.1)
        with pytest.raises(RendererError, match=r"within 0\.1 s: the machine is too busy"):
            rendering.text()


def test_closing_ends_the_process(renderer: Renderer) -> None:
    child = process(renderer)
    renderer.close()
    assert not child.is_running()
    with pytest.raises(RendererError, match="closed"):
        text(renderer, HELLO)


def test_the_process_ends_with_the_object() -> None:
    renderer = Renderer()
    child = process(renderer)
    del renderer
    assert not child.is_running()


@pytest.mark.parametrize(
    ("executable", "words"),
    [("/nowhere/python", "cannot be started with '/nowhere/python'"), ("/bin/false", "exit status 1")],
)
def test_a_renderer_that_cannot_be_started_says_why(
    monkeypatch: pytest.MonkeyPatch, executable: str, words: str
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    renderer = Renderer()
    with pytest.raises(RendererError, match=words):
        text(renderer, HELLO)
    monkeypatch.undo()
    assert text(renderer, HELLO) == "hello"
    renderer.close()


@pytest.mark.process_memory
def test_the_process_imports_little(renderer: Renderer) -> None:
    child = process(renderer)
    text(renderer, HELLO)
    loaded = {Path(region.path).name for region in child.memory_maps() if ".so" in region.path}
    assert not [name for name in loaded if "numpy" in name or name.startswith("_native") or "torch" in name]
    assert child.memory_info().rss < 32 << 20


def test_no_text_shows_an_address(renderer: Renderer) -> None:
    shown = [
        "lipsum | string", "messages.append", "[1] | map('abs')", "cycler(1)", "cycler(1).next", "joiner()",
        "raise_exception", "''.join ~ ''", "'a'.format", "messages | attr('append')", "[1] | reverse",
        "messages | batch(2)", "{}.items", "namespace", "'%r' | format(''.strip)", "[''.strip]",
        "self", "dict", "range", "{} | items", "'x'['strip']", "(1).from_bytes",
    ]  # fmt: skip
    template = "{% if true %}{% endif %}" + "".join(f"{{{{ {expression} }}}}\n" for expression in shown)
    found = text(renderer, template)
    assert "0x" not in found, found


def test_the_process_yields_to_the_kernels(renderer: Renderer) -> None:
    wait_until(lambda: process(renderer).nice() == min(os.nice(0) + 5, 19), "its niceness")
