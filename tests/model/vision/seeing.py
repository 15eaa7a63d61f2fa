"""Texts with pictures in them, read by our engine and by transformers' model."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import PIL.Image
import torch

from puna.batch import ImagePart, Input
from puna.engine.input_stream import read_text
from puna.model.load import LoadedModel
from tests.engine.runs import Run
from tests.model.models.parity import check_close
from tests.tiny_vision.common import PART, SHOWN


def picture(seed: int, width: int = 80, height: int = 60) -> PIL.Image.Image:
    """Blurred noise in colour, which no two seeds have in common."""
    noise = np.random.default_rng(seed).integers(0, 256, (6, 8, 3)).astype(np.uint8)
    return PIL.Image.fromarray(noise).resize((width, height), PIL.Image.Resampling.BICUBIC)


def file_of(image: PIL.Image.Image, format: str = "PNG", **options: Any) -> bytes:
    written = io.BytesIO()
    image.save(written, format, **options)
    return written.getvalue()


@dataclass
class Pair:
    """A tiny model that sees, ours and transformers'."""

    ours: LoadedModel
    theirs: Any
    config: Any  # of both

    def run(self, **settings: Any) -> Run:
        return Run(self.ours, **{"context": 256, "batch_size": 32, **settings})

    def inputs(self, run: Run, text: str, *pictures: PIL.Image.Image) -> list[Input]:
        """What a text with `[img-N]` becomes."""
        assert run.engine.images is not None
        images = run.engine.images.read([file_of(each) for each in pictures])
        SHOWN.update({image.digest: each.size for image, each in zip(images, pictures, strict=True)})
        return read_text(text, images, self.ours.tokenizer, self.ours.vision)

    def reference(self, inputs: list[Input]) -> torch.Tensor:
        """Log-probabilities [positions, vocab] after every input, by transformers."""
        images, parts = [], []
        for item in inputs:
            if isinstance(item.payload, ImagePart):
                parts.append(item.payload)
                if not any(item.payload.image is image for image in images[-1:]) or not item.payload.begin:
                    images.append(item.payload.image)
        tokens = [PART if item.payload is not None else item.token for item in inputs]
        with torch.inference_mode():
            return torch.log_softmax(
                self.config.logits(self.theirs, self.ours.vision.options, tokens, images), dim=-1
            )


def check_scores(pair: Pair, run: Run, number: int, inputs: list[Input]) -> None:
    """Every token of the prompt is as likely as by transformers, and so are the first tokens generated."""
    run.submit_inputs(number, inputs, prompt_logprobs=True, logprobs=True, num_predict=4)
    run.finish()
    generated = run.tokens(number)
    expected = pair.reference([*inputs, *map(Input, generated)])
    scored = run.scored(number)[1:]
    found = torch.tensor([logprob for _, logprob in scored])
    wanted = expected[torch.arange(len(scored)), torch.tensor([token for token, _ in scored])]
    possible = wanted.isfinite()  # the model of an image that is a token never says that one
    assert (found[~possible] == wanted[~possible]).all()
    check_close(pair.ours, found[possible], wanted[possible])
    check_answer(pair, run, number, inputs)


def check_answer(pair: Pair, run: Run, number: int, inputs: list[Input]) -> None:
    """The tokens that were generated are the likeliest by transformers, and as likely."""
    tokens = run.tokens(number)
    assert tokens
    expected = pair.reference([*inputs, *map(Input, tokens)])[len(inputs) - 1 : -1]
    assert tokens == expected.argmax(dim=-1).tolist()
    logprobs = [
        each.logprob for event in run.events[number] for each in getattr(event, "logprobs", ()) if each
    ]
    logprobs = logprobs[-len(tokens) :]
    for step, (token, found) in enumerate(zip(tokens, logprobs, strict=True)):
        assert abs(found - expected[step, token]) < 1e-3, step
