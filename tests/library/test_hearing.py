"""Recordings in chats of the library, in every accepted form."""

from __future__ import annotations

from pathlib import Path

import pytest

import puna
from puna.errors import AudioError, RequestError
from tests.audio.hearing import file_of, sound
from tests.model.models.parity import original
from tests.tiny.audio.models import HEARING_MODELS
from tests.tiny.converted import contents_of
from tests.tiny.llama import tiny_llama_gguf


def ask(model: puna.Model, **message: object) -> str:
    asked = {"role": "user", "content": "what was said?", **message}
    return model.chat([asked], temperature=1, seed=1, num_predict=12).text


@pytest.mark.slow
def test_every_form_of_a_recording_gives_the_same_answer(tmp_path: Path) -> None:
    config, heard = HEARING_MODELS["voxtral"](), sound(1)
    layout = config.write(tmp_path, original(config))
    path = tmp_path / "talk.wav"
    path.write_bytes(file_of(heard))
    with puna.load(layout.model, projector=layout.projector, num_ctx=256) as model:
        expected = ask(model, audio=[path])
        assert expected != ask(model, audio=[sound(2)])
        forms = [str(path), path.read_bytes(), heard, heard.samples, heard.values(0, len(heard.samples))]
        assert [ask(model, audio=[form]) for form in forms] == [expected] * len(forms)
        assert ask(model, images=[path.read_bytes()]) == expected  # as Ollama's clients send it
        with pytest.raises(AudioError, match=r"nothing\.wav cannot be read"):
            ask(model, audio=[tmp_path / "nothing.wav"])
        with pytest.raises(AudioError, match="the recording is not in a supported format; send WAV"):
            ask(model, audio=[b"no sound"])
        with pytest.raises(RequestError, match="message 1 of the chat: audio must be a list of recordings"):
            ask(model, audio=path)


def test_a_recording_for_a_model_that_does_not_hear_is_refused(tmp_path: Path) -> None:
    with (
        puna.load(tiny_llama_gguf(tmp_path / "deaf.gguf"), num_ctx=64) as model,
        pytest.raises(RequestError, match=r"deaf\.gguf has no audio tower"),
    ):
        ask(model, audio=[sound(1)])


def test_a_template_that_leaves_out_what_users_send_is_refused(tmp_path: Path) -> None:
    config = HEARING_MODELS["voxtral"]()
    layout = config.write(tmp_path, original(config))
    text = contents_of(layout.model)
    text.keys["tokenizer.chat_template"] = (
        "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %} go"
    )
    deaf = text.write(tmp_path / "deaf.gguf")
    with puna.load(deaf, projector=layout.projector, num_ctx=256) as model:
        asked = {"role": "user", "content": "what was said?"}
        assert model.chat([asked], temperature=0, num_predict=1).text is not None
        with pytest.raises(
            RequestError, match="the chat template leaves out the message with the newest image"
        ):
            model.chat([{**asked, "audio": [sound(1)]}], temperature=0, num_predict=1)
        answered = [{**asked, "audio": [sound(1)]}, {"role": "assistant", "content": "yes"}, asked]
        with pytest.raises(RequestError, match="leaves out the message"):
            model.chat(answered, temperature=0, num_predict=1)
