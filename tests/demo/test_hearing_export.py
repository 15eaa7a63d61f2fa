"""The exported demo-audio computes in Puna's engine what torch does, and tokenises as in training."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from demo.hearing.clips import LONGEST_S, Clip, recorded, silent
from demo.hearing.export import export
from demo.hearing.model import AudioModel, Shape
from demo.hearing.questions import CANNOT, NO_RECORDING, Asked, questions
from demo.hearing.rows import row_of, rows_with, spectrograms, states_of, written
from demo.hearing.speech import COMMANDS, DIGITS, NOTHING, Said, any_said
from demo.hearing.train import read
from demo.hearing.vocabulary import BOS_ID, CHAT_TEMPLATE, CONTROL, END_ID, question_vocabulary, texts
from puna.audio.mel import Features
from puna.audio.recording import Recording
from puna.batch import Input
from puna.chat.templates.choose import chat_format
from puna.chat.templates.model_facts import read_facts
from puna.gguf import GGMLType, open_gguf
from puna.model.load import LoadedModel, load_model
from puna.ops import backend_named
from puna.tokenizer import tokenizer_from_gguf
from tests.audio.hearing import Pair, is_heard, sound

SHAPE = Shape(
    hidden=64, layers=2, heads=2, feed_forward=96, context=512,
    bands=40, audio_hidden=96, audio_layers=2, audio_heads=3, audio_feed_forward=128,
)  # fmt: skip


@pytest.fixture(scope="module")
def vocabulary() -> Tokenizer:
    return question_vocabulary(clips=100)


@pytest.fixture(scope="module")
def model() -> AudioModel:
    torch.default_generator.manual_seed(4)
    made = AudioModel(SHAPE)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.dim() < 2:  # norms and biases
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif "attn_q" in name or "attn_k" in name:
                parameter.mul_(2)
    return made.eval()


@pytest.fixture(scope="module")
def exported(model: AudioModel, vocabulary: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "demo-audio.gguf"
    export(model, vocabulary, path, path.with_name("tower.gguf"), GGMLType.F32)
    return path


class Torch(Pair):
    """The model in Puna and in torch, as trained."""

    theirs: AudioModel

    def reference(self, inputs: list[Input], *recordings: Recording) -> torch.Tensor:
        tokens = torch.tensor([[item.token for item in inputs]])
        x = self.theirs.embed(tokens)
        there = torch.tensor([[is_heard(item) for item in inputs]])
        x[there] = torch.cat([self._rows(recording) for recording in recordings])
        mask = torch.ones(1, len(inputs), len(inputs), dtype=torch.bool).tril()
        with torch.inference_mode():
            hidden = self.theirs.hidden(x, torch.arange(len(inputs))[None], mask)
            vocabulary = self.ours.tokenizer.vocab_size
            return torch.log_softmax(self.theirs.logits(hidden)[0, :, :vocabulary], -1)

    def _rows(self, recording: Recording) -> torch.Tensor:
        features = spectrograms([Clip(NOTHING, recording)], self.theirs.shape.bands)
        states = torch.tensor([states_of(Clip(NOTHING, recording))])
        with torch.inference_mode():
            return self.theirs.rows(self.theirs.a(features, states))[0, : states // 2].clone()


def loaded(exported: Path) -> LoadedModel:
    return load_model(exported, projector=exported.with_name("tower.gguf"), ops=backend_named("reference"))


def scores(run: Any, number: int, inputs: list[Input]) -> list[tuple[int, float]]:
    run.submit_inputs(number, inputs, prompt_logprobs=True, num_predict=1)
    run.finish()
    found: list[tuple[int, float]] = run.scored(number)
    return found


@pytest.mark.parametrize("seconds", [1.3, 0.3031, 4.7])
def test_the_engine_computes_the_same_as_torch(model: AudioModel, exported: Path, seconds: float) -> None:
    pair = Torch(loaded(exported), model, None)
    run = pair.run(context=512)
    heard = sound(3, seconds), sound(4, 0.8)
    first = "<|user|>[img-0]What was said?<|assistant|>Five.<|end|>"
    inputs = pair.inputs(run, f"{first}<|user|>And now? [img-1]<|assistant|>Lights on.", *heard)
    expected = pair.reference(inputs, *heard)
    found = scores(run, 1, inputs)[1 : len(inputs)]
    wanted = [expected[at, token].item() for at, (token, _) in enumerate(found)]
    assert [logprob for _, logprob in found] == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("form", ["apart", "talk", "after"])
def test_questions_are_learned_as_the_engine_reads_them(
    model: AudioModel, vocabulary: Tokenizer, exported: Path, form: str
) -> None:
    """In a training row, each answer is as likely as in the conversation that the row stands for."""
    asked = [
        Asked("said", "What was said?", "Five two."), Asked("count", "How many digits are there?", "Two."),
        Asked("no recording", "What do you hear?", NO_RECORDING),
    ]  # fmt: skip
    recording = sound(5, 1.1)
    clip = Clip(Said("digits", ("five", "two")), recording)
    parts = row_of(states_of(clip) // 2, asked, vocabulary, form)
    rows = rows_with([clip, Clip(NOTHING, sound(6, 1.7))], random.Random(1), vocabulary, SHAPE.bands)
    for name, part in zip(("tokens", "positions", "mask", "heard", "learn"), parts, strict=False):
        setattr(rows, name, torch.from_numpy(part)[None])
    with torch.inference_mode():
        heard = model.a(rows.features, rows.states)[:1]
        rows.states = rows.states[:1]
        logits, target = read(model, rows, heard)
    learned = torch.log_softmax(logits[:, : vocabulary.get_vocab_size()], -1)
    expected = learned[torch.arange(len(target)), target].tolist()
    pair = Torch(loaded(exported), model, None)
    run, found, talk = pair.run(), [], ""
    for number, each in enumerate(asked[:1] if form == "after" else asked):
        given = each.answer != NO_RECORDING
        tag = "[img-0]" if given and (form != "talk" or not talk) else ""
        question = f"{each.question}{tag}" if form == "after" else f"{tag}{each.question}"
        before = talk if form == "talk" and given else ""
        text = f"{before}<|user|>{question}<|assistant|>{each.answer}<|end|>"
        talk = text
        scored = scores(run, number, pair.inputs(run, text, *[recording] * ("[img-0]" in text)))
        length = len(vocabulary.encode(each.answer).ids) + 1
        found += [logprob for _, logprob in scored[-length:]]
    assert found == pytest.approx(expected, abs=1e-3)


def test_spectrograms_of_the_training_are_those_of_the_engine() -> None:
    rng = random.Random(2)
    clips = [Clip(NOTHING, silent(rng)) for _ in range(4)] + [Clip(NOTHING, sound(7, 2.2))]
    # Silence far below the loudest moment is raised.
    clips.append(Clip(NOTHING, Recording.of(np.pad(sound(8, 1.0).values(0, 16_000), (0, 8000)))))
    found = spectrograms(clips, 80)
    for clip, each in zip(clips, found, strict=True):
        expected = Features(clip.recording, 80, 500).window(0)
        count = 2 * states_of(clip) + 1
        assert each[:count].numpy() == pytest.approx(expected[:count], abs=2e-3)


def test_the_engine_tokenises_like_the_training(vocabulary: Tokenizer, exported: Path) -> None:
    with open_gguf(exported) as file:
        tokenizer = tokenizer_from_gguf(file)
    for text in [*texts(5, 9), "Ünïcode 狐 1234", "<|user|>Hm?<|assistant|>"]:
        assert tokenizer.encode(text, add_special=False) == vocabulary.encode(text).ids
    assert tokenizer.encode("What?")[0] == BOS_ID
    assert END_ID in tokenizer.eos_ids
    assert [tokenizer.encode(each, add_special=False) for each in CONTROL] == [[i] for i in range(6)]


def test_template_renders_the_training_format(exported: Path) -> None:
    talk = [
        {"role": "user", "content": "What was said?"},
        {"role": "assistant", "content": "Stop."},
        {"role": "user", "content": "Was anything said?"},
    ]
    with open_gguf(exported) as file:
        assert file.get("tokenizer.chat_template") == CHAT_TEMPLATE
        rendered = chat_format(read_facts(file)).render(talk)
    assert rendered == (
        "<|user|>What was said?<|assistant|>Stop.<|end|><|user|>Was anything said?<|assistant|>"
    )


def test_answers_are_true_of_the_words() -> None:
    rng = random.Random(5)
    kinds = set()
    for number in range(400):
        said = any_said(rng) if number % 8 else NOTHING
        for each in questions(said, rng, 6):
            kinds.add(each.kind)
            if each.kind == "digits" and said.kind == "digits":
                assert each.answer == "".join(str(DIGITS.index(word)) for word in said.words) + "."
            if each.kind in ("said", "command") and said.kind == "command":
                assert each.answer[:-1].lower() in COMMANDS
            if said.kind == "other":
                assert each.answer in (CANNOT, "Yes.")
    assert kinds == {"said", "digits", "count", "command", "anything", "cannot tell"}


def test_clips_are_as_long_as_a_window_at_most() -> None:
    rng = random.Random(6)
    for seconds in (0.3, 2.0, 7.0):
        clip = recorded(sound(8, seconds).values(0, round(seconds * 16000)), rng)
        assert 0.25 < clip.seconds <= LONGEST_S
        assert 0 < abs(clip.samples).max() < 32767


def test_words_are_written_without_blanks_and_repetitions() -> None:
    rows = rows_with([Clip(NOTHING, sound(9, 0.5))], random.Random(1), question_vocabulary(20), 40)
    best = torch.tensor([[0, 3, 3, 0, 3, 4, 4, 0, 0, 0, 0, 5]])
    assert written(torch.nn.functional.one_hot(best, 8).float(), rows) == [[3, 3, 4, 5]]
