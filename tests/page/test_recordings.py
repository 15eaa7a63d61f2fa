"""Recordings in messages: by microphone and as files, for models that hear."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from playwright.sync_api import expect

from puna.audio.recording import SAMPLE_RATE
from tests.audio.hearing import file_of, sound
from tests.e2e.servers import Server
from tests.model.models.parity import original
from tests.page.chat import Chat
from tests.page.tabs import Visitor
from tests.page.test_attachments import attached, drop
from tests.tiny.audio.models import HEARING_MODELS

pytestmark = [pytest.mark.e2e, pytest.mark.page]

SHORT = {"options": {"temperature": 0, "seed": 1, "num_predict": 4}}


@pytest.fixture
def ears(server: Server, tmp_path: Path) -> Iterator[Server]:
    """The server with a tiny model that hears."""
    config = HEARING_MODELS["voxtral"]()
    layout = config.write(tmp_path, original(config))
    files = {path.name: server.client.create_blob(path) for path in (layout.model, layout.projector) if path}
    server.client.create(model="ears", files=files)
    yield server
    server.unload()
    server.client.delete("ears")


def listening(visit: Callable[..., Visitor], server: Server, *permissions: str) -> Chat:
    return Chat(visit(server, "ears:latest", {"puna.defaults": SHORT}, permissions=permissions).tab())


def test_microphone_gives_a_recording_that_is_sent_played_and_kept(
    ears: Server, visit: Callable[..., Visitor]
) -> None:
    chat = listening(visit, ears, "microphone")
    chat.tab.button("Record").click()
    end = chat.tab.button("End the recording")
    expect(end).to_contain_text(re.compile("[1-9]"))  # seconds, of which a busy machine may skip the first
    end.click()
    expect(attached(chat)).to_contain_text("Recording.wav")
    expect(chat.tab.button("Record")).to_be_visible()
    request = chat.asked(lambda: chat.ask("What was said?"))
    data = base64.b64decode(request["messages"][0]["images"][0])
    samples, rate = soundfile.read(io.BytesIO(data))
    assert (rate, samples.ndim) == (SAMPLE_RATE, 1)
    assert len(samples) > SAMPLE_RATE / 2
    spectrum = np.abs(np.fft.rfft(samples))
    loudest = np.fft.rfftfreq(len(samples), 1 / rate)[spectrum.argmax()]
    assert 250 < loudest < 750, "the microphone hears tones from 300 to 700 Hz"
    chat.expect_rest()
    chat.tab.reload()
    expect(chat.questions.locator("audio")).to_have_attribute("aria-label", "Recording.wav")


def test_files_with_sound_are_dropped_and_heard(ears: Server, visit: Callable[..., Visitor]) -> None:
    chat = listening(visit, ears)
    data = file_of(sound(1))
    drop(chat.tab, "talk.wav", "audio/x-wav", data)
    expect(attached(chat)).to_contain_text("talk.wav")
    expect(chat.root.locator(".attachment.reading")).to_have_count(0)
    request = chat.asked(lambda: chat.ask("What was said?"))
    assert base64.b64decode(request["messages"][0]["images"][0]) == data
    chat.expect_rest()
    message = {"role": "user", "content": "What was said?", "images": [data]}
    same = ears.client.chat("ears", [message], options=SHORT["options"]).message.content or ""
    assert chat.text.inner_text().split() == same.split()


@pytest.mark.thorough
def test_without_permission_the_page_says_so(ears: Server, visit: Callable[..., Visitor]) -> None:
    chat = listening(visit, ears)
    chat.tab.button("Record").click()
    expect(chat.tab.toasts).to_contain_text("does not lend this page the microphone")
    expect(chat.tab.button("Record")).to_be_visible()


def test_model_that_does_not_hear_offers_no_microphone(server: Server, visit: Callable[..., Visitor]) -> None:
    chat = Chat(visit(server).tab())
    drop(chat.tab, "talk.wav", "audio/wav", file_of(sound(1)))
    expect(chat.root).to_contain_text("does not hear recordings")
    expect(chat.tab.button("Record")).to_have_count(0)
