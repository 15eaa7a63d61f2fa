"""A real runner process, driven as the server drives it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from puna.chat.templates.messages import Chat, Message
from puna.errors import (
    ContextLengthError,
    GGUFError,
    PunaError,
    RequestError,
    RunnerError,
    TemplateError,
    UnsupportedModelError,
)  # fmt: skip
from puna.gguf import GGUFWriter
from puna.options import Options
from puna.prefix_blocks import block_digests
from puna.protocol import (  # fmt: skip
    Chunk,
    Done,
    Embed,
    FromRunner,
    Generate,
    Load,
    Loaded,
    Prompted,
    Unpacker,
    pack,
)
from puna.runner.client import LocalRunner
from tests.runner.running import GREEDY, LONG, WithRunner, collect, idle, started, with_runner
from tests.tiny.llama import TinyLlama, add_tokenizer, tiny_llama_gguf
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.e2e


def test_draft_model_is_loaded_and_changes_no_answer(model: Path) -> None:
    texts: list[str] = []

    def use(speculate: str | None) -> Callable[[LocalRunner], Awaitable[None]]:
        async def scenario(runner: LocalRunner) -> None:
            options = Options(temperature=0, num_predict=60, speculate=speculate)
            texts.append((await collect(runner, "once upon a time", options))[0])

        return scenario

    with_runner(model, use(None))
    with_runner(model, use("draft"), draft=str(model))
    assert texts[0] == texts[1]
    with pytest.raises(RequestError, match="loaded without a draft model"):
        with_runner(model, use("draft"))


def test_runner_loads_generates_and_exits(model: Path) -> None:
    async def use(runner: LocalRunner) -> None:
        assert runner.alive
        assert (runner.info.context_length, runner.info.parallel) == (2048, 4)
        assert runner.info.weight_bytes > 0
        text, done = await collect(runner, "hello world")
        assert text
        assert done.eval_count <= 8
        both = await asyncio.gather(collect(runner, "hello world"), collect(runner, "once upon a time"))
        assert both[0][0] == text
        assert both[1][0] != text

    with_runner(model, use)


def test_progress_is_reported_while_loading(model: Path) -> None:
    steps: list[tuple[int, int]] = []

    async def scenario() -> None:
        runner = await started(
            Load(path=str(model), num_ctx=64), on_progress=lambda done, total: steps.append((done, total))
        )
        await runner.close()

    asyncio.run(scenario())
    assert steps
    assert steps[-1][0] == steps[-1][1]


def test_runner_renders_prompts(with_shared_runner: WithRunner) -> None:
    async def use(runner: LocalRunner) -> None:
        chat = Chat(messages=[Message(role="user", content="hello")])
        prompted = await runner.render(Generate(prompt=chat))
        assert prompted.text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        events = [event async for event in runner.generate(Generate(prompt=chat, options=GREEDY))]
        assert isinstance(events[0], Prompted)
        assert (events[0].text, events[0].tokens) == (prompted.text, prompted.tokens)
        given = await runner.render(Generate(prompt=prompted.tokens))
        assert given.text.endswith(prompted.text)  # follows the beginning-of-sequence token
        with pytest.raises(TemplateError, match="line 1"):
            await runner.render(Generate(prompt=chat, template="{{ .Prompt"))
        with pytest.raises(RequestError, match="vocabulary"):
            await runner.render(Generate(prompt=[10**6]))

    with_shared_runner(use)


def test_an_answer_goes_on_in_another_process(model: Path) -> None:
    options = Options(temperature=0.9, seed=5, num_predict=100)
    pieces: list[Chunk] = []

    async def begin(runner: LocalRunner) -> None:
        request = Generate(prompt="hello world", options=options, logprobs=True)
        pieces.extend([event async for event in runner.generate(request) if isinstance(event, Chunk)])

    async def go_on(runner: LocalRunner) -> None:
        known = [token for piece in pieces for token in piece.tokens][:60]
        request = Generate(prompt="hello world", options=options, logprobs=True, resumed=[known])
        events = [event async for event in runner.generate(request)]
        found = [event for event in events if isinstance(event, Chunk)]
        assert [msgspec.structs.replace(each, id=0) for each in found] == [
            msgspec.structs.replace(each, id=0) for each in pieces
        ]
        done = events[-1]
        assert isinstance(done, Done)
        assert (done.resumed, done.diverged) == (60, 0)
        assert runner.tally.generated_tokens == 40

    with_runner(model, begin)
    with_runner(model, go_on)


def test_runner_reports_prefixes(model: Path) -> None:
    async def use(runner: LocalRunner) -> None:
        empty = await runner.prefixes(0)
        assert (empty.added, empty.whole) == (b"", True)
        prompt = [*range(5, 205)]
        await collect(runner, prompt)
        report = await runner.prefixes(0)
        assert {*np.frombuffer(report.added, "<u8").tolist()} == {*block_digests(prompt)}
        again = await runner.prefixes(report.version)
        assert (again.version, again.added, again.removed, again.whole) == (report.version, b"", b"", False)

    with_runner(model, use)


def test_runner_embeds_texts_and_tokens(with_shared_runner: WithRunner) -> None:
    async def use(runner: LocalRunner) -> None:
        texts = ["hello world", "once upon a time", "the story"]
        before = runner.tally.prompt_tokens
        found = await runner.embed(Embed(inputs=[*texts, [7, 8]], dimensions=16))
        assert [event.sample for event in found] == [0, 1, 2, 3]
        assert [len(event.vector) for event in found] == [4 * 16] * 4
        assert found[3].prompt_eval_count == 2
        assert runner.tally.prompt_tokens - before == sum(event.prompt_eval_count for event in found)
        (alone,) = await runner.embed(Embed(inputs=texts[1:2], dimensions=16))
        assert alone.vector == found[1].vector
        assert await runner.embed(Embed(inputs=[])) == []

    with_shared_runner(use)


def test_input_that_cannot_be_embedded_fails_the_whole_request(with_shared_runner: WithRunner) -> None:
    async def use(runner: LocalRunner) -> None:
        with pytest.raises(ContextLengthError, match="> 2048 maximum"):
            await runner.embed(Embed(inputs=[[1] * 2000, [1] * 2049], truncate=False))
        task = asyncio.create_task(runner.embed(Embed(inputs=[[number] * 2000 for number in range(50)])))
        while (await runner.ping()).active == 0:
            await asyncio.sleep(0.01)
        task.cancel()
        while (await runner.ping()).active > 0:
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await task

    with_shared_runner(use)


@pytest.mark.parametrize("kind", ["missing", "text", "architecture"])
def test_each_kind_of_load_failure_has_its_own_error_class(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.gguf"
    expected: tuple[type[PunaError], str] = (GGUFError, "model.gguf")
    if kind == "text":
        path.write_text("no model at all, just some words")
    elif kind == "architecture":
        writer = GGUFWriter(path, "quantumformer")
        add_tokenizer(writer)
        writer.write()
        expected = (UnsupportedModelError, "'quantumformer' is not supported; supported: ")
    before = psutil.Process().children()
    with pytest.raises(expected[0], match=expected[1]):
        asyncio.run(started(Load(path=str(path), num_ctx=64)))
    assert psutil.Process().children() == before


def test_bad_request_does_not_affect_later_requests(with_shared_runner: WithRunner) -> None:
    async def use(runner: LocalRunner) -> None:
        with pytest.raises(RequestError, match="empty"):
            await collect(runner, [])
        with pytest.raises(ContextLengthError, match="> 2048 maximum"):
            async for _ in runner.generate(Generate(prompt=[1] * 3000, options=GREEDY, truncate=False)):
                pass
        assert (await collect(runner, "hello"))[0]

    with_shared_runner(use)


def test_closing_a_stream_stops_its_generation(with_shared_runner: WithRunner) -> None:
    async def use(runner: LocalRunner) -> None:
        async with aclosing(runner.generate(Generate(prompt="hello", options=LONG))) as stream:
            assert isinstance(await anext(stream), Prompted)
            async for item in stream:
                assert isinstance(item, Chunk)
                assert (await runner.ping()).active == 1
                break
        await idle(runner)

    with_shared_runner(use)


def test_stalled_reader_delays_no_other(with_shared_runner: WithRunner) -> None:
    async def use(runner: LocalRunner) -> None:
        async with aclosing(runner.generate(Generate(prompt="hello", options=LONG))) as stalled:
            await anext(stalled)  # then stop reading
            for prompt in ("hello world", "once upon a time"):
                _, done = await collect(runner, prompt, Options(temperature=0, num_predict=150))
                assert done.eval_count == 150
            while (
                active := (await runner.ping()).active
            ) > 1:  # the end is reported before the request is removed
                await asyncio.sleep(0.01)
            assert active == 1
            for _ in range(300):  # the text generated meanwhile is still available
                await anext(stalled)

    with_shared_runner(use)


def test_cancelled_start_leaves_no_process_or_descriptor() -> None:
    async def cancelled_after(ticks: int) -> None:
        starting = asyncio.create_task(LocalRunner.spawn())
        for _ in range(ticks):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    us = psutil.Process()
    gc.collect()  # connections dropped by other tests
    before = us.num_fds(), us.children()
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always", ResourceWarning)
        for ticks in (0, 1, 2, 4, 8):
            asyncio.run(cancelled_after(ticks))
            assert us.children() == before[1], ticks
        gc.collect()
    assert not raised
    assert (us.num_fds(), us.children()) == before


def test_cancelling_a_task_stops_its_generation(with_shared_runner: WithRunner) -> None:
    async def use(runner: LocalRunner) -> None:
        task = asyncio.create_task(collect(runner, "hello", LONG))
        while (await runner.ping()).active == 0:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await idle(runner)

    with_shared_runner(use)


def test_requests_of_a_killed_process_fail_with_its_exit_status(model: Path) -> None:
    async def use(runner: LocalRunner) -> None:
        async def kill_midway() -> None:
            async for _ in runner.generate(Generate(prompt="hello", options=LONG)):
                os.kill(runner.pid, signal.SIGKILL)

        with pytest.raises(RunnerError, match=r"unexpectedly stopped.*killed by signal 9"):
            await kill_midway()
        assert not runner.alive
        with pytest.raises(RunnerError, match="unexpectedly stopped"):
            await collect(runner, "hello")

    with_runner(model, use)


def test_file_truncated_while_in_use_is_reported_as_the_cause(model: Path, tmp_path: Path) -> None:
    """Weights kept in the file's own layout are read from the mapped file for as long as they are used."""
    path = tmp_path / "cut.gguf"
    path.write_bytes(model.read_bytes())

    async def use(runner: LocalRunner) -> None:
        async def use_all() -> None:
            while True:
                await collect(runner, "hello")

        os.truncate(path, 4096)
        with pytest.raises(RunnerError, match="SIGBUS: the model's file changed or the disk failed"):
            await use_all()

    with_runner(path, use)


def test_process_killed_with_unread_input_is_reported_as_killed(model: Path) -> None:
    async def scenario() -> None:
        runner = await LocalRunner.spawn()
        process = psutil.Process(runner.pid)
        process.suspend()  # leave its input unread, so that the connection is reset rather than closed
        loading = asyncio.create_task(runner.load(Load(path=str(model), num_ctx=64)))
        await asyncio.sleep(0)  # lets the request be sent
        process.kill()
        with pytest.raises(RunnerError, match=r"has terminated: killed by signal 9") as caught:
            await loading
        assert "Errno" not in str(caught.value)
        await runner.close()

    asyncio.run(scenario())


def test_ping_of_a_hung_process_times_out(with_shared_runner: WithRunner) -> None:
    async def use(runner: LocalRunner) -> None:
        os.kill(runner.pid, signal.SIGSTOP)
        with pytest.raises(RunnerError, match=r"did not answer within 0\.2 s"):
            await runner.ping(0.2)
        os.kill(runner.pid, signal.SIGCONT)
        assert (await runner.ping()).active == 0

    with_shared_runner(use)


def test_cancellation_that_meets_the_reply_is_not_lost(
    with_shared_runner: WithRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `asyncio.wait_for` loses it before Python 3.12: a request whose client has disconnected went on.
    async def use(runner: LocalRunner) -> None:
        task = asyncio.create_task(runner.ping())
        pass_on = runner._pass_on

        def pass_on_and_cancel(request_id: int, message: FromRunner) -> None:
            pass_on(request_id, message)
            task.cancel()

        monkeypatch.setattr(runner, "_pass_on", pass_on_and_cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        monkeypatch.undo()

    with_shared_runner(use)


def test_loading_without_progress_times_out(model: Path) -> None:
    async def scenario() -> None:
        runner = await LocalRunner.spawn()
        process = psutil.Process(runner.pid)
        process.suspend()
        with pytest.raises(RunnerError, match=r"timed out waiting .* progress 0\.00"):
            await runner.load(Load(path=str(model), num_ctx=64), stall_timeout_s=0.01)
        process.resume()
        await runner.close()

    before = psutil.Process().children()
    asyncio.run(scenario())
    assert psutil.Process().children() == before


def test_file_that_floods_the_log_is_loaded_and_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log line contains the file's unknown pre-tokenizer name."""
    name = "flood " * 200_000 + "\n\x1b[2J" * 100_000
    path = tiny_llama_gguf(tmp_path / "flood.gguf", TinyLlama(context=64), pre=name)

    async def use(runner: LocalRunner) -> None:
        assert (await collect(runner, "hello"))[1].eval_count > 0
        await runner.ping()

    caplog.set_level(logging.INFO, "puna.runner")
    with_runner(path, use, num_ctx=64)
    (line,) = [record.getMessage() for record in caplog.records if "unknown pre-tokenizer" in record.message]
    assert line.isprintable()
    assert len(line) < 10_000


def test_endless_log_line_is_cut_and_later_output_is_read(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Use another program as the runner: any process can write such a line."""
    talker = tmp_path / "talker"
    talker.write_text(
        f"#!{sys.executable}\n"
        "import os, signal\n"
        "for _ in range(1000):\n"
        "    os.write(2, b'x' * 10_000)\n"
        "os.write(2, b'\\ndone\\n')\n"
        "signal.pause()\n"
    )
    talker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(talker))
    caplog.set_level(logging.INFO, "puna.runner")

    async def scenario() -> None:
        runner = await LocalRunner.spawn()
        while not any(record.getMessage().endswith("done") for record in caplog.records):
            await asyncio.sleep(0.01)
        runner.kill("it talks too much")
        with pytest.raises(RunnerError, match="it talks too much"):
            await runner.ping()
        await runner.close()

    asyncio.run(scenario())
    assert [len(record.getMessage()) < 10_000 for record in caplog.records] == [True] * 2
    assert "more bytes" in caplog.records[0].getMessage()


def test_runner_exits_when_the_server_is_killed(model: Path, tmp_path: Path) -> None:
    """A killed server cannot tell the runner to exit."""
    script = (
        "import asyncio, sys, time\n"
        "from puna.runner.client import LocalRunner\n"
        "from puna.protocol import Load\n"
        "async def main():\n"
        "    runner = await LocalRunner.spawn()\n"
        "    await runner.load(Load(path=sys.argv[1], num_ctx=64))\n"
        "    print(runner.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(model)], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        runner = psutil.Process(int(server.stdout.readline()))
        server.kill()
    runner.wait(timeout=PATIENCE_S)


@pytest.mark.parametrize("during", ["load", "generation"])
def test_vanished_server_is_not_reported_as_a_defect(model: Path, during: str) -> None:
    """Any of the runner's threads may notice first."""
    server, runner = socket.socketpair()
    command = [sys.executable, "-m", "puna.runner", str(runner.fileno())]
    pipes = {"pass_fds": [runner.fileno()], "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process, server:
        runner.close()
        if during == "load":
            server.shutdown(socket.SHUT_RD)  # the runner can still receive, but not send
        server.sendall(pack(Load(path=str(model), num_ctx=64)))
        if during == "generation":
            unpacker: Unpacker[FromRunner] = Unpacker(FromRunner)
            loaded = False
            while not loaded:
                frames = unpacker.feed(server.recv(1 << 16))
                loaded = any(isinstance(frame.message(), Loaded) for frame in frames)
            server.shutdown(socket.SHUT_RD)
            server.sendall(pack(Generate(id=1, prompt="hello", options=LONG)))
        _, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, log
    assert "the connection broke" in log
    assert "Traceback" not in log
