"""Recordings in the engine: when their windows are encoded, how long that takes, and what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from puna.audio.limits import AudioLimits
from puna.batch import WindowedRecording
from puna.engine.images import Images
from puna.engine.requests import read_text
from puna.errors import AudioError
from puna.model.load import LoadedModel, load_model
from tests.audio.hearing import file_of, sound
from tests.engine.runs import Watched
from tests.model.models.parity import original
from tests.tiny.audio.models import HEARING_MODELS

#: Seconds of three windows of the tiny model, and the rows of one.
LONG_S = 5.5
ROWS = 25


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    config = HEARING_MODELS["voxtral"]()
    layout = config.write(tmp_path_factory.mktemp("hearing"), original(config))
    return load_model(layout.model, projector=layout.projector)


def images_of(run: Watched) -> Images:
    assert run.engine.images is not None
    return run.engine.images


def test_a_recording_takes_the_place_of_its_tag_and_is_known_by_its_content(hearing: LoadedModel) -> None:
    run, data = Watched(hearing, context=256), file_of(sound(1, LONG_S))
    first, again, other = images_of(run).read([data, data, file_of(sound(2))])
    assert first is again
    assert isinstance(first, WindowedRecording)
    assert [window.rows for window in first.windows] == [ROWS] * 3
    inputs = read_text("a[img-0]b[img-2]", [first, again, other], hearing.tokenizer, images_of(run))
    hashes = [item.payload_hash for item in inputs if item.payload]
    assert len(hashes) == len(set(hashes)) == 4 * ROWS
    assert images_of(Watched(hearing, context=256)).read([data])[0].digest == first.digest


def test_windows_are_encoded_one_after_another_between_the_steps_of_others(
    hearing: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Watched(hearing, context=256, batch_size=32)
    monkeypatch.setattr(run.engine.scheduler.pace, "patience_s", lambda load: 0.0)
    run.submit(0, "hello", num_predict=150)
    run.engine.step()
    (stream,) = run.engine.scheduler.running
    found = images_of(run).read([file_of(sound(1, LONG_S))])
    run.submit_inputs(1, read_text("hear [img-0]", found, hearing.tokenizer, images_of(run)), num_predict=2)
    (recorded,) = found
    assert isinstance(recorded, WindowedRecording)
    while images_of(run).encoded < 3:
        said = stream.generated
        run.engine.step()
        assert stream.generated == said + 1  # each step has a slice at most
        # A window is encoded once those before it are nearly evaluated.
        states = [window.states is not None for window in recorded.windows]
        assert states == sorted(states, reverse=True)
        for other in run.engine.scheduler.running:
            if other is not stream:
                assert other.evaluated <= len(other.inputs) - (3 - images_of(run).encoded) * ROWS
    run.finish()
    assert len(run.tokens(1)) == 2


def test_states_of_evaluated_windows_are_dropped_beyond_the_limit(hearing: LoadedModel) -> None:
    run = Watched(hearing, context=512)
    states = ROWS * hearing.model.options.hidden_size * 4
    images = run.engine.images = Images(None, 32, audio_tower=hearing.audio, kept_bytes=2 * states)
    kept: list[int] = []
    inputs = read_text("[img-0]", images.read([file_of(sound(1, 11.0))]), hearing.tokenizer, images)
    windows = list({id(item.payload.image): item.payload.image for item in inputs if item.payload}.values())
    run.submit_inputs(0, inputs, num_predict=2)
    while not run.ended:
        run.engine.step()
        kept.append(sum(window.states is not None for window in windows))
    assert images.encoded == 6
    assert max(kept) <= 3  # the limit, and the one being evaluated
    assert len(run.tokens(0)) == 2


LIMITS: dict[str, tuple[AudioLimits, list[float], str]] = {
    "number": (AudioLimits(count=2), [0.1] * 3, r"3 recordings, and at most 2 are allowed"),
    "length": (AudioLimits(minutes=1), [61.0], r"the recording is longer than 1 minute: "),
    "together": (AudioLimits(minutes=1), [31.0, 32.0], r"longer than 1 minute together: .*MAX_AUDIO_MINUTES"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_recordings_beyond_a_limit_are_refused(name: str, hearing: LoadedModel) -> None:
    limits, seconds, complaint = LIMITS[name]
    files = [file_of(sound(number, each)) for number, each in enumerate(seconds)]
    with pytest.raises(AudioError, match=complaint):
        images_of(Watched(hearing, context=128)).read(files, audio=limits)


def test_a_recording_that_is_known_counts_for_the_length(hearing: LoadedModel) -> None:
    images, files = images_of(Watched(hearing, context=128)), [file_of(sound(1, 31.0))] * 2
    images.read(files[:1])
    with pytest.raises(AudioError, match="longer than 1 minute together"):
        images.read(files, audio=AudioLimits(minutes=1))


def test_the_memory_of_reading_is_in_the_forecast(tmp_path: Path) -> None:
    from puna.gguf import open_gguf
    from puna.model.memory import IMAGE_STATE_BYTES, Forecast

    config = HEARING_MODELS["qwen3-asr"]()
    layout = config.write(tmp_path, original(config))
    sizes: dict[str, Any] = {"context": 64, "parallel": 1, "batch": 32}
    assert layout.projector is not None
    with open_gguf(layout.model) as file, open_gguf(layout.projector) as projector:
        plain, hears = Forecast(file), Forecast(file, projector=projector)
        assert hears.audio is not None
        more = hears.table(**sizes).activations - plain.table(**sizes).activations
        assert more == hears.audio.tower.memory_bytes(32) + IMAGE_STATE_BYTES
        assert hears.weight_bytes - plain.weight_bytes == sum(t.nbytes for t in projector.tensors.values())
