"""The process that decodes an audio file: its result, its limits, and its end."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from puna.audio.decoder.client import Decoding, decode
from puna.audio.limits import AudioLimits
from puna.audio.recording import Recording
from puna.errors import AudioError, ReaderError
from tests.audio.sounds import file_of, flac_bomb, tone, wav
from tests.processes import children
from tests.waiting import wait_until


def test_a_recording_is_that_of_its_file() -> None:
    sound = tone(3.0)
    assert np.array_equal(decode(wav(sound), "it").samples, (sound * 32767).astype(np.int16))
    assert children("audio/decoder") == []


def test_errors_name_the_file() -> None:
    with pytest.raises(AudioError, match=r"^talk\.mp3 is empty"):
        decode(b"", "talk.mp3")


def test_remarks_of_libraries_are_not_in_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AudioError, match="it is cut short"):
        decode(file_of(tone(9.0), format="MP3")[:9_000], "it")
    assert capfd.readouterr().err == ""


class Hurried(AudioLimits, frozen=True):
    """Limits that a bomb is sure to exceed."""

    @property
    def seconds(self) -> float:
        return 0.5


@pytest.mark.slow
def test_a_file_that_takes_too_long_is_refused() -> None:
    with pytest.raises(
        AudioError, match=r"it takes more than 0\.5 s of processor time to read: send it in p"
    ):
        decode(flac_bomb(20_000, rate=192_000), "it", Hurried())


@pytest.mark.slow
def test_a_file_that_takes_too_much_memory_is_refused() -> None:
    with pytest.raises(AudioError, match="it takes more than 0 MB of memory"):
        decode(file_of(tone(9.0)), "it", AudioLimits(memory_bytes=0))


@pytest.mark.slow
def test_a_decoding_can_be_stopped() -> None:
    decoding = Decoding(flac_bomb(20_000), "it")
    errors: list[Exception] = []

    def run() -> None:
        try:
            decoding.samples()
        except ReaderError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: children("audio/decoder"), "the process")
    decoding.stop()
    thread.join()
    assert "the process that reads audio files has ended" in str(errors[0])
    assert children("audio/decoder") == []
    Decoding(b"", "it").stop()  # before it has begun


@pytest.mark.slow
def test_a_decoding_stopped_before_it_begins_ends_at_once() -> None:
    decoding = Decoding(flac_bomb(100), "it")
    decoding.stop()
    with pytest.raises(ReaderError):
        decoding.samples()


def test_a_decoded_file_has_the_length_that_was_recorded() -> None:
    found = decode(file_of(tone(2.0, 44_100), 44_100, "OGG"), "it")
    assert isinstance(found, Recording)
    assert abs(found.seconds - 2.0) < 0.001
