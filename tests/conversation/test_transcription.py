"""Transcription of recordings, against transformers and by its parts."""

from __future__ import annotations

import dataclasses
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from puna.audio import words
from puna.audio.mel import HOP
from puna.audio.recording import SAMPLE_RATE, Recording
from puna.audio.words import words_of
from puna.chat.templates.model_facts import facts_at
from puna.chat.templates.renderer.client import Renderer
from puna.conversation import transcription
from puna.conversation.chat_model import ChatModel
from puna.engine.engine import Engine
from puna.engine.room import EngineSizes
from puna.errors import AudioError, RequestError, UnavailableError
from puna.model.load import load_model
from puna.protocol import Event, Failed, Generate, Heard, Segment, Transcribe, Transcribed
from tests.model.models.parity import FLOATS, original
from tests.tiny.llama import tiny_llama_gguf
from tests.tiny.whisper import LANGUAGES, TinyWhisper, tiny_whisper_gguf

pytestmark = pytest.mark.slow

#: Answers of these end by themselves, and look certain.
CERTAIN = TinyWhisper(
    sharp=30.0, context=200, ends=2.4, seed=4, alignment_heads=((0, 3), (2, 0), (1, 2), (2, 3))
)
#: Answers look wrong at every temperature.
DOUBTFUL = TinyWhisper(layers=1, decoder_layers=1, sharp=0.1)
END = Transcribed | Failed


def recording(seconds: float, seed: int = 4) -> Recording:
    """Return noise that becomes louder."""
    count = int(seconds * SAMPLE_RATE)
    return Recording.of(np.random.default_rng(seed).normal(0, 0.1, count) * np.linspace(0, 1, count))


def chat_of(path: Path, *, context: int = 0, parallel: int = 2, batch_size: int = 64) -> ChatModel:
    sizes = EngineSizes(context=context, parallel=parallel, batch_size=batch_size, cache_types=FLOATS)
    engine = Engine(load_model(path), sizes)
    engine.start()
    facts = facts_at(path)
    assert facts is not None
    return ChatModel(engine, facts, Renderer())


def chat_with(folder: Path, config: TinyWhisper, **more: int) -> ChatModel:
    return chat_of(tiny_whisper_gguf(folder / "m.gguf", config, model=original(config)), **more)


@pytest.fixture(scope="module")
def certain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatModel]:
    # With half a context of 96 tokens for text, and 96 for an answer.
    chat = chat_with(tmp_path_factory.mktemp("certain"), CERTAIN, context=192)
    yield chat
    chat.close()


@pytest.fixture(scope="module")
def doubtful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatModel]:
    chat = chat_with(tmp_path_factory.mktemp("doubtful"), DOUBTFUL)
    yield chat
    chat.close()


def transcribed(chat: ChatModel, heard: Recording, **more: Any) -> list[Event]:
    """Return all events of a transcription."""
    arrived: queue.SimpleQueue[Event] = queue.SimpleQueue()
    chat.submit(Transcribe(id=1, samples=heard.data, **more), arrived.put)
    events = [arrived.get(timeout=60)]
    while not isinstance(events[-1], END):
        events.append(arrived.get(timeout=60))
    return events


def segments_in(events: list[Event]) -> list[Segment]:
    assert isinstance(events[-1], Transcribed), events[-1]
    return [event for event in events if isinstance(event, Segment)]


def reference(config: TinyWhisper, heard: Recording, unsaid: tuple[int, ...], **more: Any) -> list[Any]:
    """Return the segments of transformers: begin and end in seconds, and tokens, with times of their ends."""
    model = original(config)
    settings = model.generation_config
    settings.is_multilingual = config.multilingual
    settings.alignment_heads = [*map(list, config.alignment_heads)]
    if config.multilingual:
        settings.lang_to_id = {f"<|{code}|>": config.id_of(code) for code in LANGUAGES}
        settings.task_to_id = {task: config.id_of(task) for task in ("transcribe", "translate")}
    settings.no_timestamps_token_id = config.id_of("notimestamps")
    settings.prev_sot_token_id = config.id_of("startofprev")
    settings.max_initial_timestamp_index = 50
    settings.suppress_tokens, settings.begin_suppress_tokens = list(unsaid), None
    settings.max_length, settings.max_new_tokens = None, 96
    extractor = WhisperFeatureExtractor(
        feature_size=config.bands, chunk_length=config.positions * 2 * HOP // SAMPLE_RATE
    )
    inputs = extractor(
        heard.values(0, len(heard.samples)), sampling_rate=SAMPLE_RATE, truncation=False, padding="longest",
        return_attention_mask=True, return_tensors="pt",
    )  # fmt: skip
    with torch.inference_mode():
        found = model.generate(
            inputs.input_features, attention_mask=inputs.attention_mask, return_timestamps=True,
            condition_on_prev_tokens=True, return_segments=True, temperature=0.0, do_sample=False,
            return_token_timestamps=bool(config.alignment_heads), **more,
        )  # fmt: skip
    return [
        (
            round(float(each["start"]), 2),
            round(min(float(each["end"]), heard.seconds), 2),
            each["tokens"],
            each.get("token_timestamps"),
        )
        for each in found["segments"][0]
    ]


@pytest.mark.parametrize("translate", [False, True])
def test_segments_are_those_of_the_reference(
    certain: ChatModel, monkeypatch: pytest.MonkeyPatch, translate: bool
) -> None:
    monkeypatch.setattr(transcription, "_TEMPERATURES", (0.0,))  # the reference draws other random numbers
    heard = recording(5.3)
    assert certain._transcriber is not None
    task = "translate" if translate else "transcribe"
    expected = reference(CERTAIN, heard, certain._transcriber.tokens.unsaid, language="de", task=task)
    found = segments_in(transcribed(certain, heard, language="German", translate=translate))
    assert len(found) > 2
    assert [(each.start_s, each.end_s) for each in found] == [each[:2] for each in expected]
    for ours, (_, _, theirs, _) in zip(found, expected, strict=True):
        assert ours.tokens == theirs.tolist()[: len(ours.tokens)]
        assert len(theirs) <= len(ours.tokens) + 1  # the begin of the next segment is repeated there
    assert not any(each.words for each in found)


@pytest.mark.parametrize("batch_size", [64, 512])
def test_times_of_words_are_those_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    """A small batch does not hold all tokens of a window. Every character counts as a word here."""
    monkeypatch.setattr(words, "_UNSPACED", {"de"})
    monkeypatch.setattr(transcription, "_TEMPERATURES", (0.0,))
    heard = recording(5.3)
    chat = chat_with(tmp_path, CERTAIN, context=192, batch_size=batch_size)
    assert chat._transcriber is not None
    tokens, piece = chat._transcriber.tokens, chat.engine.loaded.tokenizer.piece
    expected = reference(CERTAIN, heard, tokens.unsaid, language="de", task="transcribe")
    found = segments_in(transcribed(chat, heard, language="de", word_timestamps=True))
    assert [(each.start_s, each.end_s) for each in found] == [each[:2] for each in expected]
    counted = 0
    for ours, (_, _, theirs, ends) in zip(found, expected, strict=True):
        spoken = [place for place, token in enumerate(theirs.tolist()) if token < tokens.end]
        joined = words_of([piece(int(theirs[place])) for place in spoken], "de")
        assert [each.text for each in ours.words] == [each.text for each in joined]
        assert "".join(each.text for each in ours.words) == ours.text
        for mine, word in zip(ours.words, joined, strict=True):
            span = float(ends[spoken[word.begin] - 1]), float(ends[spoken[word.end - 1]])
            assert (mine.start_s, mine.end_s) == pytest.approx(span, abs=1e-3)
            counted += 1
    assert counted > 20
    assert len({each.end_s for segment in found for each in segment.words}) > 5
    chat.close()


def test_words_end_with_the_recording_and_follow_each_other(certain: ChatModel) -> None:
    heard = recording(3.3)
    found = [
        word for each in segments_in(transcribed(certain, heard, word_timestamps=True)) for word in each.words
    ]
    assert found
    times = [time for word in found for time in (word.start_s, word.end_s)]
    assert 0 <= min(times) <= max(times) <= heard.seconds
    assert all(word.start_s <= word.end_s for word in found)


def test_a_model_without_heads_that_follow_the_speech_is_refused(tmp_path: Path) -> None:
    path = tiny_whisper_gguf(tmp_path / "m.gguf", DOUBTFUL, metadata={"alignment_heads": []})
    chat = chat_of(path)
    with pytest.raises(UnavailableError, match=r"m.gguf has no heads that follow the speech"):
        chat.submit(Transcribe(samples=recording(0.1).data, word_timestamps=True), lambda event: None)
    chat.close()


def test_a_transcript_tells_its_progress(certain: ChatModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcription, "_TEMPERATURES", (0.0,))
    events = transcribed(certain, recording(5.3), language="fr")
    progress = [event for event in events if isinstance(event, Heard)]
    assert isinstance(events[0], Heard)
    assert events[0].done_s == 0
    assert progress[-1].done_s == progress[-1].total_s == pytest.approx(5.3)
    assert [each.done_s for each in progress] == sorted({each.done_s for each in progress})
    assert {each.language for each in progress} == {"fr"}
    end = events[-1]
    assert isinstance(end, Transcribed)
    assert end.language == "fr"
    assert end.eval_count >= sum(len(each.tokens) for each in segments_in(events))
    assert [each.number for each in segments_in(events)] == list(range(len(segments_in(events))))


def test_the_language_is_the_likeliest_after_the_start(certain: ChatModel) -> None:
    heard = recording(0.2)
    features = WhisperFeatureExtractor(feature_size=80, chunk_length=2)(
        heard.values(0, len(heard.samples)), sampling_rate=SAMPLE_RATE, return_tensors="pt"
    )
    start = torch.tensor([[CERTAIN.id_of("startoftranscript")]])
    with torch.inference_mode():
        logits = original(CERTAIN)(input_features=features.input_features, decoder_input_ids=start).logits
    likeliest = max(LANGUAGES, key=lambda code: float(logits[0, -1, CERTAIN.id_of(code)]))
    first = transcribed(certain, heard)[0]
    assert isinstance(first, Heard)
    assert first.language == likeliest


def test_text_that_looks_wrong_is_read_again_at_higher_temperatures(doubtful: ChatModel) -> None:
    heard = recording(1.2)
    events = transcribed(doubtful, heard, language="en")
    found = segments_in(events)
    assert {each.temperature for each in found} == {1.0}
    assert [each.tokens for each in found] == [
        each.tokens for each in segments_in(transcribed(doubtful, heard, language="en"))
    ]
    other = segments_in(transcribed(doubtful, heard, language="en", seed=1))
    assert [each.tokens for each in found] != [each.tokens for each in other]
    fixed = segments_in(transcribed(doubtful, heard, language="en", temperature=0.4))
    assert {each.temperature for each in fixed} == {0.4}


def test_a_prompt_changes_the_text(certain: ChatModel) -> None:
    heard = recording(0.5)
    plain, prompted = (
        segments_in(transcribed(certain, heard, language="en", prompt=prompt)) for prompt in ("", "once upon")
    )
    assert [each.tokens for each in plain] != [each.tokens for each in prompted]
    blank = segments_in(transcribed(certain, heard, language="en", prompt="  "))
    assert [each.tokens for each in plain] == [each.tokens for each in blank]


@pytest.mark.parametrize("seconds", [1 / SAMPLE_RATE, 0.05])
def test_a_recording_shorter_than_a_frame_ends(certain: ChatModel, seconds: float) -> None:
    heard = Recording.of(np.zeros(max(int(seconds * SAMPLE_RATE), 1)))
    events = transcribed(certain, heard, word_timestamps=True)
    assert isinstance(events[-1], Transcribed)
    assert events[-1].language in LANGUAGES


def test_several_transcriptions_share_the_model_and_give_the_same_text(
    certain: ChatModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcription, "_TEMPERATURES", (0.0,))
    heard = [recording(2.4, seed) for seed in range(3)]
    alone = [segments_in(transcribed(certain, each)) for each in heard]
    arrived: queue.SimpleQueue[Event] = queue.SimpleQueue()
    for number, each in enumerate(heard):
        certain.submit(Transcribe(id=number, samples=each.data, client=f"{number % 2}"), arrived.put)
    together: dict[int, list[Event]] = {number: [] for number in range(3)}
    while not all(events and isinstance(events[-1], END) for events in together.values()):
        event = arrived.get(timeout=60)
        together[event.id].append(event)
    for number, expected in enumerate(alone):
        found = segments_in(together[number])
        assert [each.tokens for each in found] == [each.tokens for each in expected]


def test_a_cancelled_transcription_tells_nothing_more(certain: ChatModel) -> None:
    arrived: queue.SimpleQueue[Event] = queue.SimpleQueue()
    certain.submit(Transcribe(id=7, samples=recording(60.0).data, language="en"), arrived.put)
    assert isinstance(arrived.get(timeout=60), Heard)
    certain.cancel(7)
    transcribed(certain, recording(0.1))  # others go on
    assert certain.engine.active == 0
    while not arrived.empty():
        assert not isinstance(arrived.get(), END)


def test_closing_the_model_fails_transcriptions(tmp_path: Path) -> None:
    chat = chat_with(tmp_path, DOUBTFUL, parallel=1)
    arrived: queue.SimpleQueue[Event] = queue.SimpleQueue()
    for number in range(2):
        chat.submit(Transcribe(id=number, samples=recording(60.0).data), arrived.put)
    assert isinstance(arrived.get(timeout=60), Heard)
    chat.close()
    failed = set()
    while not arrived.empty():
        if isinstance(event := arrived.get(), Failed):
            failed.add((event.id, event.message))
    assert failed == {(0, "the model was unloaded"), (1, "the model was unloaded")}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"language": "klingon"}, "'klingon' is unknown"),
        ({"language": "sv"}, "does not know the language swedish"),
        ({"temperature": 1.5}, "temperature is 1.5, and must be from 0 to 1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"prompt": "a" * (2 << 20)}, "bytes of text"),
        ({"samples": b""}, "the recording is empty"),
        ({"samples": b"abc"}, "3 bytes, which is not even"),
        ({"samples": bytes(2 * 7201 * SAMPLE_RATE)}, "7201 s, and 7200 s are allowed"),
    ],
    ids=["unknown", "missing", "hot", "nan", "prompt", "empty", "odd", "long"],
)
def test_wrong_requests_are_refused_by_name(certain: ChatModel, more: dict[str, Any], words: str) -> None:
    request = Transcribe(**{"samples": recording(0.1).data} | more)
    with pytest.raises(RequestError, match=words):
        certain.submit(request, lambda event: None)


def test_a_model_of_english_only_has_neither_languages_nor_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcription, "_TEMPERATURES", (0.0,))
    config = dataclasses.replace(CERTAIN, multilingual=False)
    chat = chat_with(tmp_path, config, context=192)
    heard = recording(2.0)
    for more in ({"language": "de"}, {"translate": True}):
        with pytest.raises(RequestError, match="no language but English"):
            chat.submit(Transcribe(samples=heard.data, **more), lambda event: None)
    events = transcribed(chat, heard, language="en")
    assert isinstance(events[0], Heard)
    assert events[0].language == "en"
    assert chat._transcriber is not None
    expected = reference(config, heard, chat._transcriber.tokens.unsaid)
    first, theirs = segments_in(events)[0], expected[0]
    assert (first.start_s, first.end_s) == theirs[:2]
    assert first.tokens == theirs[2].tolist()[: len(first.tokens)]
    chat.close()


def test_models_do_only_what_they_are_for(certain: ChatModel, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="does not generate text; it transcribes"):
        certain.submit(Generate(prompt="hello"), lambda event: None)
    with pytest.raises(AudioError, match="empty"):
        certain.submit(Transcribe(), lambda event: None)
    chat = chat_of(tiny_llama_gguf(tmp_path / "llama.gguf"), context=64)
    with pytest.raises(UnavailableError, match="does not transcribe"):
        chat.submit(Transcribe(samples=recording(0.1).data), lambda event: None)
    chat.close()
