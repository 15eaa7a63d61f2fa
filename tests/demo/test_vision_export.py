"""The exported demo-vision computes in Puna's engine what torch does, and tokenises as in training."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from demo.vision.export import export
from demo.vision.model import Shape, VisionModel
from demo.vision.questions import Asked, questions
from demo.vision.rows import Rows, normalised, pixels_of, prefix_tokens, row_of
from demo.vision.scenes import any_scene
from demo.vision.train import read
from demo.vision.vocabulary import BOS_ID, CHAT_TEMPLATE, CONTROL, END_ID, question_vocabulary, texts
from puna.batch import ImagePart, Input
from puna.chat.templates.choose import chat_format
from puna.chat.templates.model_facts import read_facts
from puna.gguf import GGMLType, open_gguf
from puna.model.load import load_model
from puna.ops import backend_named
from puna.tokenizer import tokenizer_from_gguf
from tests.vision.seeing import Pair, check_scores

SHAPE = Shape(
    hidden=64, layers=2, heads=2, feed_forward=96, context=256,
    image=40, patch=10, vision_hidden=64, vision_layers=2, vision_heads=2, vision_feed_forward=96,
)  # fmt: skip


@pytest.fixture(scope="module")
def vocabulary() -> Tokenizer:
    return question_vocabulary(pictures=40)


@pytest.fixture(scope="module")
def model() -> VisionModel:
    torch.default_generator.manual_seed(4)
    made = VisionModel(SHAPE)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.dim() < 2:  # norms and biases
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif "attn_q" in name or "attn_k" in name:
                parameter.mul_(2)
    return made.eval()


@pytest.fixture(scope="module")
def exported(model: VisionModel, vocabulary: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "demo-vision.gguf"
    export(model, vocabulary, path, GGMLType.F32)
    return path


class Torch(Pair):
    """The model in Puna and in torch, as trained."""

    theirs: VisionModel

    def reference(self, inputs: list[Input]) -> torch.Tensor:
        parts = [item.payload for item in inputs]
        tokens = torch.tensor([[item.token for item in inputs]])
        x = self.theirs.embed(tokens)
        mask = torch.ones(1, len(inputs), len(inputs), dtype=torch.bool).tril()
        for at, part in enumerate(parts):
            if isinstance(part, ImagePart) and part.begin == 0:
                end = at + part.image.rows
                pixels = normalised(part.image.pixels.pixels.copy())
                x = torch.cat((x[:, :at], self.theirs.rows(pixels), x[:, end:]), 1)
                mask[:, at:end, at:end] = True
        with torch.inference_mode():
            hidden = self.theirs.hidden(x, torch.arange(len(inputs))[None], mask)
            vocabulary = self.ours.tokenizer.vocab_size
            return torch.log_softmax(self.theirs.logits(hidden)[0, :, :vocabulary], -1)


def test_the_engine_computes_the_same_as_torch(model: VisionModel, exported: Path) -> None:
    pair = Torch(load_model(exported, ops=backend_named("reference")), model, "gemma3")
    run = pair.run()
    pictures = [any_scene(random.Random(seed)).picture for seed in (1, 2)]
    first = "<|user|>[img-0]What is in this picture?<|assistant|>"
    again = f"{first}A red circle.<|end|><|user|>[img-1]How many shapes are there?<|assistant|>"
    check_scores(pair, run, 1, pair.inputs(run, first, pictures[0]))
    check_scores(pair, run, 2, pair.inputs(run, again, *pictures))


def test_questions_are_learned_as_the_engine_reads_them(
    model: VisionModel, vocabulary: Tokenizer, exported: Path
) -> None:
    """In a training row, each answer is as likely as if its question came first."""
    scene = any_scene(random.Random(3))
    asked = [
        Asked("describe", "What is this?", "A red star."),
        Asked("count", "How many shapes are there?", "Two."),
        Asked("no picture", "What do you see?", "I see no picture."),
    ]
    prefix, begin = prefix_tokens(vocabulary, SHAPE)
    parts = row_of(prefix, begin, SHAPE.rows, asked, vocabulary, apart=True)
    tokens, positions, mask, learn, question = (torch.from_numpy(part)[None] for part in parts)
    pixels = normalised(np.stack([pixels_of(scene.picture, SHAPE.image)]))
    rows = Rows(pixels, {}, tokens, positions, mask, learn, [], question)
    with torch.inference_mode():
        logits, target = read(model, rows, model.v(pixels), begin)
    learned = torch.log_softmax(logits[:, : vocabulary.get_vocab_size()], -1)
    expected = learned[torch.arange(len(target)), target].tolist()
    pair = Torch(load_model(exported, ops=backend_named("reference")), model, "gemma3")
    run, found = pair.run(), []
    for number, each in enumerate(asked):
        pictures = [] if each.kind == "no picture" else [scene.picture]
        tag = "[img-0]" if pictures else ""
        said = f"<|user|>{tag}{each.question}<|assistant|>{each.answer}<|end|>"
        run.submit_inputs(number, pair.inputs(run, said, *pictures), prompt_logprobs=True, num_predict=1)
        run.finish()
        length = len(vocabulary.encode(each.answer).ids) + 1
        found += [logprob for _, logprob in run.scored(number)[-length:]]
    assert found == pytest.approx(expected, abs=1e-3)


def test_the_engine_tokenises_like_the_training(vocabulary: Tokenizer, exported: Path) -> None:
    with open_gguf(exported) as file:
        tokenizer = tokenizer_from_gguf(file)
    for text in [*texts(5, 9), "\n\nThe word CAT.", "Ünïcode 狐 1234", "<|user|>Hm?<|assistant|>"]:
        assert tokenizer.encode(text, add_special=False) == vocabulary.encode(text).ids
    assert tokenizer.encode("What?")[0] == BOS_ID
    assert END_ID in tokenizer.eos_ids
    assert [tokenizer.encode(each, add_special=False) for each in CONTROL] == [[i] for i in range(6)]


def test_template_renders_the_training_format(exported: Path) -> None:
    talk = [
        {"role": "user", "content": "What is this?"},
        {"role": "assistant", "content": "A red star."},
        {"role": "user", "content": "Where is it?"},
    ]
    with open_gguf(exported) as file:
        assert file.get("tokenizer.chat_template") == CHAT_TEMPLATE
        rendered = chat_format(read_facts(file)).render(talk)
    assert rendered == (
        "<|user|>What is this?<|assistant|>A red star.<|end|><|user|>Where is it?<|assistant|>"
    )


def test_answers_are_true_of_the_drawn_scene() -> None:
    rng = random.Random(5)
    asked: list[Asked] = []
    for _ in range(300):
        scene = any_scene(rng)
        found = questions(scene, rng, 6)
        assert len({each.question for each in found}) == len(found)
        for each in found:
            if each.kind == "count":
                words = ("None.", "One.", "Two.", "Three.", "Four.", "Five.")
                assert words.index(each.answer) == len(scene.things)
        asked += found
    assert {"describe", "count", "colour", "position", "noise", "cannot tell"} <= {a.kind for a in asked}
