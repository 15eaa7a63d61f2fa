"""Transcription by a real runner process."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import pytest

import puna
from puna.audio.recording import SAMPLE_RATE, Recording
from puna.errors import ModelError, RequestError
from puna.protocol import Heard, Segment, Transcribe, Transcribed
from puna.runner.client import LocalRunner
from tests.runner.running import idle, with_runner
from tests.tiny.converted import converted
from tests.tiny.whisper import TinyWhisper, tiny_whisper_gguf

pytestmark = pytest.mark.e2e

CONFIG = TinyWhisper(layers=1, decoder_layers=1, sharp=30.0, ends=2.4, seed=4)


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_whisper_gguf(tmp_path_factory.mktemp("whisper") / "m.gguf", CONFIG)


def recording(seconds: float) -> Recording:
    return Recording.of(np.random.default_rng(1).normal(0, 0.1, int(seconds * SAMPLE_RATE)))


def test_a_runner_transcribes_as_the_library_does(hearing: Path) -> None:
    with puna.load(hearing) as model:
        expected = model.transcribe(recording(5.0), language="de")

    async def use(runner: LocalRunner) -> None:
        request = Transcribe(samples=recording(5.0).data, language="de")
        events = [event async for event in runner.transcribe(request)]
        segments = [event for event in events if isinstance(event, Segment)]
        assert [each.tokens for each in segments] == [each.tokens for each in expected.segments]
        assert isinstance(events[0], Heard)
        end = events[-1]
        assert isinstance(end, Transcribed)
        assert (runner.tally.finished, runner.tally.generated_tokens) == (1, end.eval_count)
        with pytest.raises(RequestError, match="'klingon' is unknown"):
            await anext(runner.transcribe(Transcribe(samples=recording(1.0).data, language="klingon")))

    with_runner(hearing, use)


def test_a_transcription_that_is_given_up_stops(hearing: Path) -> None:
    async def use(runner: LocalRunner) -> None:
        events = runner.transcribe(Transcribe(samples=recording(600.0).data))
        assert isinstance(await anext(events), Heard)
        await events.aclose()
        await idle(runner)

    with_runner(hearing, use)


def test_a_recording_counts_as_active_between_its_windows_too(hearing: Path) -> None:
    async def use(runner: LocalRunner) -> None:
        first, second = (runner.transcribe(Transcribe(samples=recording(600.0).data)) for _ in range(2))
        await anext(first)
        running = []
        while (pong := await runner.ping()).active:
            running.append(pong.running)
        assert running, "it has ended before it could be asked"
        assert set(running) <= {0, 1}  # one is at work at a time
        assert not any([(await runner.ping()).active for _ in range(50)])  # it had ended, not paused
        assert isinstance([event async for event in first][-1], Transcribed)
        await anext(second)
        assert (await runner.ping()).active == 1
        await second.aclose()
        await idle(runner)

    with_runner(hearing, use)


def test_the_sender_lets_go_of_a_recording_that_the_runner_has(hearing: Path) -> None:
    class Samples(np.ndarray):  # unlike those of numpy, they can be referred to weakly
        pass

    async def use(runner: LocalRunner) -> None:
        samples = recording(60.0).samples.view(Samples)
        gone = weakref.ref(samples)
        events = runner.transcribe(Transcribe(samples=samples.data.cast("B")))
        del samples
        await anext(events)
        assert gone() is None
        await events.aclose()

    with_runner(hearing, use)


def test_a_model_without_the_tokens_of_transcripts_is_refused(tmp_path: Path) -> None:
    found = converted(CONFIG.build())
    path = found.write(tmp_path / "m.gguf")

    async def use(runner: LocalRunner) -> None:
        raise AssertionError("it was loaded")

    with pytest.raises(ModelError, match="has no token <\\|startoftranscript"):
        with_runner(path, use)
