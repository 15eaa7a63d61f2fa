"""Grammar processes agree with the library, and end with their requests or when they exceed a limit."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from puna.chat.answers.family import Reading
from puna.chat.answers.parts import Tags
from puna.chat.answers.registry import FAMILIES, PLAIN
from puna.chat.answers.tools import tools_of
from puna.errors import FormatError, RequestError, RunnerError
from puna.gguf import open_gguf
from puna.grammar.compiled import Grammars
from puna.grammar.compiler import client
from puna.grammar.compiler.client import Compiler, wait
from puna.grammar.compiler.protocol import FormatTask
from puna.grammar.format import Format
from puna.tokenizer import Tokenizer, tokenizer_from_gguf
from tests.grammar.hostile import AMBIGUOUS, PATTERNS
from tests.grammar.schemas import random_schema
from tests.processes import children
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.waiting import wait_until

LIMITS = r"it took more than (2 s of processor time|512 MB of memory), the limit for one format"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_gguf(tmp_path_factory.mktemp("compiler") / "tiny.gguf", TinyLlama(layers=1))


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return tokenizer_from_gguf(open_gguf(path))


@pytest.fixture
def compiler(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    monkeypatch.setattr(client, "_PATIENCE_S", 250.0)  # two seconds of processor time may take minutes
    compiler = Compiler(path)
    yield compiler
    compiler.close()


def processes() -> list[psutil.Process]:
    """Return all grammar processes of this process."""
    return children("grammar/compiler")


def has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def task_of(format: Format | None, reading: Reading | None = None) -> bytes:
    task = FormatTask.pickled_of(format, reading)
    assert task is not None
    return task


def tokens_of(mask: Any, tokenizer: Tokenizer) -> list[int]:
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits[: tokenizer.vocab_size])]


@pytest.mark.slow
@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_an_answer_is_followed_as_by_the_library(
    compiler: Compiler, tokenizer: Tokenizer, seed: int, thinks: bool
) -> None:
    """Some tokens are drafted, and some of these are right."""
    dice = random.Random(seed)
    format = Format.json_schema(random_schema(dice))
    reading = Reading(PLAIN, Tags("<", " t"), "<") if thinks else None
    following = compiler.constraint_of(task_of(format, reading))
    expected = Grammars(tokenizer).constraint_of(format, reading)
    assert expected is not None
    for _ in range(60):
        drafts = following.forced()[:4] or [dice.randrange(tokenizer.vocab_size) for _ in range(2)]
        following.prepare(drafts if dice.random() < 0.7 else [])
        for draft in [*drafts, None]:
            assert np.array_equal(following.allowed(), expected.allowed())
            allowed = tokens_of(expected.allowed(), tokenizer)
            token = draft if draft in allowed else dice.choice(allowed)
            taken = following.accept(token)
            assert taken == expected.accept(token)
            assert following.finished == expected.finished
            if expected.finished or token in tokenizer.eos_ids:
                return
            if taken:
                assert following.forced() == expected.forced()
            if token != draft:
                break
    following.close()


def test_tool_calls_are_compiled_too(compiler: Compiler) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"not": {}}}}}}
    reading = Reading(FAMILIES["hermes"], tools=tools_of([tool]), choice="required")
    with pytest.raises(RequestError, match="the parameters of tool 'add': the keyword \"not\" at"):
        compiler.constraint_of(task_of(None, reading))


@pytest.mark.slow
@pytest.mark.parametrize(
    "format",
    [
        Format.json_schema(PATTERNS),
        Format.grammar("start: %json " + json.dumps(PATTERNS)),
    ],
    ids=["schema", "json in lark"],
)
def test_an_excessive_format_is_stopped_and_the_limit_named(compiler: Compiler, format: Format) -> None:
    before = psutil.Process().memory_info().rss
    with pytest.raises(RequestError, match=LIMITS):
        compiler.constraint_of(task_of(format))
    assert psutil.Process().memory_info().rss < before + (64 << 20)
    assert compiler.constraint_of(task_of(Format.regex("a"))).allowed().any()
    wait_until(lambda: len(processes()) == 2, "the end of all but the vocabulary's and the format's")


@pytest.mark.slow
def test_an_answer_with_excessive_steps_is_stopped_and_the_limit_named(
    compiler: Compiler, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "FOLLOW_S", 1.0)
    following = compiler.constraint_of(task_of(Format.grammar(AMBIGUOUS)))
    other = compiler.constraint_of(task_of(Format.grammar(AMBIGUOUS)))
    (letter,) = tokenizer.encode("a", add_special=False, first=False)

    def say() -> None:
        while True:
            following.prepare([])
            while not following.ready:
                wait([following], 60)
            following.allowed()
            following.offer(letter)
            while not following.ready:
                wait([following], 60)
            following.accept(letter)

    with pytest.raises(FormatError, match=r"more than 1 s of processor time, the limit for one answer"):
        say()
    other.allowed()
    assert other.accept(letter)  # it has a process of its own


@pytest.mark.slow
def test_compiling_ends_when_no_request_waits_for_it(compiler: Compiler) -> None:
    compiler.constraint_of(task_of(Format.regex("a")))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(compiler.constraint_of, task_of(Format.json_schema(PATTERNS)), 1)
        wait_until(lambda: any(child.cpu_times().user > 0.05 for child in processes()[2:]), "the work")
        second = pool.submit(compiler.constraint_of, task_of(Format.json_schema(PATTERNS)), 2)
        wait_until(lambda: any(len(each.asked_by) == 2 for each in compiler._kept.values()), "the second")
        compiler.cancel(1)
        assert len(processes()) == 3  # the second goes on
        with pytest.raises(RequestError, match=LIMITS):
            second.result()
        with pytest.raises(RequestError, match=LIMITS):
            first.result()
        alone = pool.submit(compiler.constraint_of, task_of(Format.json_schema(PATTERNS)), 3)
        wait_until(lambda: len(processes()) == 3, "another try")
        compiler.cancel(3)
        with pytest.raises(RunnerError):
            alone.result()
    wait_until(lambda: len(processes()) == 2, "the end")


def test_compiling_ends_when_all_its_requests_are_cancelled(compiler: Compiler) -> None:
    compiler.constraint_of(task_of(Format.regex("a")))
    task = task_of(Format.json_schema(PATTERNS))
    others = processes()
    compiler._compiled(task)
    wait_until(lambda: len(processes()) == 3, "its process")
    next(each for each in processes() if each not in others).suspend()  # so that it does not end on its own
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(compiler.constraint_of, task, number) for number in (1, 2)]
        wait_until(lambda: any(len(each.asked_by) == 2 for each in compiler._kept.values()), "both")
        compiler.cancel(1)
        compiler.cancel(2)
        for one in asked:
            with pytest.raises(RunnerError, match="has ended"):
                one.result()
    wait_until(lambda: len(processes()) == 2, "its end")


def test_compiling_continues_for_an_answer_when_another_request_leaves(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = compiler.constraint_of(task_of(Format.regex("b")))
    monkeypatch.setattr(client, "_MAX_KEPT", 1)
    compiler.constraint_of(task_of(Format.regex("a")))
    wait_until(lambda: len(processes()) == 2, "the end of the first")
    root = processes()[0]
    root.suspend()
    waiting.prepare([])
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(compiler.constraint_of, task_of(Format.regex("b")), 1)
        wait_until(lambda: any(each.asked_by for each in compiler._kept.values()), "the other")
        compiler.cancel(1)
        root.resume()
        assert other.result() is not None
    assert waiting.allowed().any()


def test_a_finished_answer_leaves_no_process(compiler: Compiler) -> None:
    following = compiler.constraint_of(task_of(Format.regex("a")))
    assert len(processes()) == 2  # one holds the vocabulary, one the format
    following.allowed()
    assert len(processes()) == 3
    assert all(process.num_threads() == 1 for process in processes())  # otherwise forks would be unsafe
    following.close()
    wait_until(lambda: len(processes()) == 2, "the end of the answer's")
    compiler.close()
    wait_until(lambda: not processes(), "the end of all")
    with pytest.raises(RunnerError, match="unloaded"):
        compiler.constraint_of(task_of(Format.regex("a")))


def test_formats_are_compiled_once_and_eventually_forgotten(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_MAX_KEPT", 2)
    made: list[bytes] = []
    start = client._Format.__init__

    def counted(self: client._Format, process: Any, task: bytes) -> None:
        made.append(task)
        start(self, process, task)

    monkeypatch.setattr(client._Format, "__init__", counted)
    waiting = compiler.constraint_of(task_of(Format.regex("x1")))
    started = compiler.constraint_of(task_of(Format.regex("x1")))
    expected = started.allowed().tolist()
    for pattern in ("x2", "x1", "x3", "x4"):
        compiler.constraint_of(task_of(Format.regex(pattern)))
    assert len(made) == 4
    wait_until(lambda: len(processes()) == 5, "the end of x2")  # x1 lives as long as its answer
    assert waiting.allowed().tolist() == expected  # compiled again
    assert len(made) == 5
    started.close()
    del started
    wait_until(lambda: len(processes()) == 4, "the end of the first x1")


def test_formats_are_forgotten_when_together_they_exceed_the_memory_limit(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(name: str) -> int:
        properties = {f"{name}{place}": {"enum": [f"{name}{place}" * 20]} for place in range(300)}
        schema = {"type": "object", "properties": properties, "required": [*properties]}
        compiler.constraint_of(task_of(Format.json_schema(schema)))
        return next(reversed(compiler._kept.values())).size_bytes

    size = compiled("first")
    assert size > 1 << 16
    monkeypatch.setattr(client, "_MAX_KEPT_BYTES", 2.5 * size)
    compiled("second")
    assert len(compiler._kept) == 2
    compiled("third")
    assert len(compiler._kept) == 2
    wait_until(lambda: len(processes()) == 3, "the end of the first")
    monkeypatch.setattr(client, "_MAX_KEPT_BYTES", size // 2)
    compiled("fourth")  # stays, though it alone exceeds the limit
    assert len(compiler._kept) == 1
    wait_until(lambda: len(processes()) == 2, "the end of the others")


@pytest.mark.slow
def test_killed_processes_are_replaced(compiler: Compiler) -> None:
    def killed(index: int) -> None:
        victim = processes()[index]
        os.kill(victim.pid, signal.SIGKILL)
        wait_until(lambda: has_ended(victim), "the end of it")

    following = compiler.constraint_of(task_of(Format.regex("ab")))
    following.allowed()
    killed(2)
    with pytest.raises(FormatError, match="512 MB"):  # the system kills when memory is short
        following.accept(0)
    killed(1)
    (format,) = compiler._kept.values()
    wait_until(lambda: format.is_over, "the report of its end")
    compiler.constraint_of(task_of(Format.regex("ab"))).allowed()
    killed(0)
    compiler.constraint_of(task_of(Format.regex("cd"))).allowed()


def test_many_threads_compile_at_once(compiler: Compiler) -> None:
    together = threading.Barrier(6)

    def ask(number: int) -> bool:
        together.wait(60)
        return bool(compiler.constraint_of(task_of(Format.regex(f"x{number % 3}"))).allowed().any())

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(ask, range(6)))


def test_a_missing_model_is_a_clear_error(tmp_path: Path) -> None:
    compiler = Compiler(tmp_path / "none.gguf")
    with pytest.raises(RunnerError, match="has ended"):
        compiler.constraint_of(task_of(Format.regex("a")))
    compiler.close()
