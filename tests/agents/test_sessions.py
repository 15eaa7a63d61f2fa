"""Recorded sessions of agents reuse nearly all of what a server has seen before."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from puna.gguf import open_gguf
from puna.tokenizer.load import tokenizer_from_gguf
from tests.agents.conversation import TEMPLATE, Conversation, written
from tests.agents.playing import Encode, longest_prefix, play, reuse, send
from tests.agents.sessions import (
    AGENTS,
    SEEING,
    TURNS,
    WORDS,
    Session,
    Teller,
    aider,
    goose,
    opencode,
)
from tests.agents.wire import messages_request
from tests.e2e.servers import Server, add_model, running
from tests.model.models.parity import original
from tests.tiny.converted import contents_of
from tests.tiny.gemma3 import TinyGemma3, tiny_gemma3_gguf
from tests.tiny.lfm2 import TinyLfm2, tiny_lfm2_gguf
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.tiny.vision.gemma3 import TinyGemma3Vision
from tests.vision.seeing import file_of, picture

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

#: The share of what could be reused that must be.
BAR = 0.98
CONTEXT = 32768
THINKING = TEMPLATE.replace(
    "<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}"
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = tuple(f" {word}" for word in WORDS)
    config = TinyLlama(context=CONTEXT, layers=1, words=words)
    return tiny_llama_gguf(tmp_path_factory.mktemp("agents") / "tiny.gguf", config, chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def encode(file: Path) -> Encode:
    tokenizer = tokenizer_from_gguf(open_gguf(file))
    return lambda text: tokenizer.encode(text, add_special=True)


@pytest.fixture(scope="module")
def server(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    with running(folder, PUNA_CONTEXT_LENGTH=str(CONTEXT), PUNA_LOG_FORMAT="json") as server:
        add_model(server, "tiny", file)
        yield server


def with_template(path: Path, template: str) -> Path:
    """Return a copy of a model's file with this chat template."""
    found = contents_of(path)
    found.set({"tokenizer.chat_template": template})
    return found.write(path.with_name(f"templated-{path.name}"))


@pytest.fixture(scope="module")
def seeing_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = TinyGemma3(context=CONTEXT, window=CONTEXT)
    config, folder = TinyGemma3Vision(text), tmp_path_factory.mktemp("seeing")
    return with_template(config.write(folder, original(config)).model, TEMPLATE)


@pytest.fixture(scope="module")
def seeing_encode(seeing_file: Path) -> Encode:
    tokenizer = tokenizer_from_gguf(open_gguf(seeing_file))
    return lambda text: tokenizer.encode(text, add_special=True)


@pytest.fixture(scope="module")
def seeing(server: Server, seeing_file: Path) -> Server:
    add_model(server, "seeing", seeing_file)
    return server


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.__name__)
def test_a_session_reuses_what_the_server_has_seen(
    server: Server, encode: Encode, agent: Callable[[], Session]
) -> None:
    session = agent()
    assert len(session.requests) >= TURNS
    costs = play(session, server.http, "tiny", encode)
    assert [cost.prompt for cost in costs] == [cost.expected for cost in costs]
    assert reuse(costs) >= BAR, [(cost.prompt, cost.cached, cost.seen) for cost in costs]


@pytest.mark.parametrize("agent", SEEING, ids=lambda agent: agent.__name__)
def test_a_session_with_pictures_does_too(
    seeing: Server, seeing_encode: Encode, agent: Callable[..., Session]
) -> None:
    session = agent(12, lambda number: file_of(picture(number, 32, 32)))
    costs = play(session, seeing.http, "seeing", seeing_encode)
    assert any(b"image" in str(request.body).encode() for request in session.requests)
    assert reuse(costs) >= BAR, [(cost.prompt, cost.cached, cost.seen) for cost in costs]


def test_a_model_with_states_resumes_before_the_thought_that_its_template_begins(
    server: Server, tmp_path: Path
) -> None:
    """The prompt ends with `<think>`, which the template leaves out of the answer when it comes back."""
    file = with_template(tiny_lfm2_gguf(tmp_path / "states.gguf", TinyLfm2(context=CONTEXT)), THINKING)
    tokenizer = tokenizer_from_gguf(open_gguf(file))
    add_model(server, "states", file)
    session = opencode(12)
    costs = play(
        session, server.http, "states", lambda text: tokenizer.encode(f"{text}<think>\n", add_special=True)
    )
    assert [cost.prompt for cost in costs] == [cost.expected for cost in costs]
    assert reuse(costs) >= BAR, [(cost.prompt, cost.cached, cost.seen) for cost in costs]
    server.client.delete("states")


def windows_file(folder: Path) -> Path:
    config = TinyGemma3(context=CONTEXT, window=256, pattern=2)
    return with_template(tiny_gemma3_gguf(folder / "windows.gguf", config), TEMPLATE)


def states_file(folder: Path) -> Path:
    return with_template(tiny_lfm2_gguf(folder / "states.gguf", TinyLfm2(context=CONTEXT)), TEMPLATE)


#: In every run: last messages that move, which caches that forget find hardest.
_SAMPLE = {(windows_file, aider), (states_file, goose)}


@pytest.mark.parametrize(
    ("write", "agent"),
    [
        pytest.param(
            write,
            agent,
            marks=[] if (write, agent) in _SAMPLE else pytest.mark.thorough,
            id=f"{write.__name__}-{agent.__name__}",
        )
        for write in (windows_file, states_file)
        for agent in AGENTS
    ],
)
def test_a_session_with_a_model_that_forgets_does_too(
    server: Server, tmp_path: Path, write: Callable[[Path], Path], agent: Callable[[], Session]
) -> None:
    """Windows and states are resumed only where a checkpoint is."""
    file = write(tmp_path)
    tokenizer = tokenizer_from_gguf(open_gguf(file))
    add_model(server, "forgetful", file)
    costs = play(agent(), server.http, "forgetful", lambda text: tokenizer.encode(text, add_special=True))
    assert [cost.prompt for cost in costs] == [cost.expected for cost in costs]
    assert reuse(costs) >= BAR, [(cost.prompt, cost.cached, cost.seen) for cost in costs]
    server.client.delete("forgetful")


def test_parallel_subagents_evaluate_what_they_share_once(server: Server, encode: Encode) -> None:
    teller = Teller("parallel")
    shared = Conversation(system=[teller.text(300)], tools=teller.tools("Read", "Edit", "Bash"))
    helpers = [shared.copied() for _ in range(4)]
    for helper in helpers:
        helper.add("user", teller.text(20))
    requests = [messages_request(helper) for helper in helpers]
    with ThreadPoolExecutor(len(requests)) as threads:
        found = [*threads.map(lambda request: send(request, server.http, "tiny"), requests)]
    texts = [encode(written(helper)) for helper in helpers]
    once = min(longest_prefix(text, [other]) for text in texts for other in texts if other is not text)
    evaluated = sum(prompt - cached for prompt, cached in found)
    least = once + sum(len(text) - once for text in texts)
    assert evaluated <= least / BAR


def test_a_prompt_that_keeps_changing_early_is_reported(server: Server, encode: Encode) -> None:
    """A date in the system prompt is nothing a server may rewrite."""
    teller = Teller("reported")
    rules = teller.text(400)
    conversation = Conversation()
    conversation.add("user", teller.text(20))
    warnings = []
    before = broken_prefixes(server)
    for turn in range(4):
        conversation.system = [f"It is 10:{turn:02}:00.", rules]
        body = {**messages_request(conversation).body, "model": "tiny", "max_tokens": 1}
        warnings.append(server.http.post("/v1/messages", json=body).json().get("warnings", []))
        conversation.add("assistant", teller.text(5))
        conversation.add("user", teller.text(5))
    assert warnings[:2] == [[], []]
    for (report,) in warnings[2:]:
        assert re.fullmatch(
            r"prefix broken at token \d+ by '10:0[23]:00\..*': \d+ tokens cannot be reused", report
        )
    assert broken_prefixes(server) == before + 2
    lines = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    reports = [line for line in lines if line["logger"] == "puna.server.prefixes"]
    assert [(line["level"], line["model"]) for line in reports] == [
        ("WARNING", "tiny:latest")
    ]  # one a minute
    assert reports[0]["message"] == warnings[2][0]


def broken_prefixes(server: Server) -> float:
    found = re.search(
        r'puna_broken_prefixes_total\{model="tiny:latest"\} (\S+)', server.http.get("/metrics").text
    )
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.__name__)
def test_sessions_are_the_same_on_every_run(agent: Callable[[], Session]) -> None:
    assert agent() == agent()
