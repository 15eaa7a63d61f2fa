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
from puna.images.pixels import normalised, patches
from puna.model.load import LoadedModel
from tests.engine.runs import Run
from tests.tiny_vision import PART


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
    kind: str

    def run(self, **settings: Any) -> Run:
        return Run(self.ours, **{"context": 256, "batch_size": 32, **settings})

    def inputs(self, run: Run, text: str, *pictures: PIL.Image.Image) -> list[Input]:
        """What a text with `[img-N]` becomes."""
        assert run.engine.images is not None
        images = run.engine.images.read([file_of(each) for each in pictures])
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
            return torch.log_softmax(REFERENCES[self.kind](self, tokens, images), dim=-1)


def channels_first(pair: Pair, pixels: np.ndarray) -> torch.Tensor:
    """Normalised pixels [tiles, 3, height, width] of uint8 [tiles, height, width, 3]."""
    options = pair.ours.vision.options
    tiles = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    flat = normalised(tiles.reshape(len(tiles), -1), options.mean, options.std)
    return torch.from_numpy(flat.reshape(tiles.shape))


def _gemma3(pair: Pair, tokens: list[int], images: list[Any]) -> torch.Tensor:
    ids = torch.tensor([tokens])
    pixels = torch.cat([channels_first(pair, image.pixels.pixels) for image in images]) if images else None
    kinds = (ids == PART).long()
    return pair.theirs(input_ids=ids, pixel_values=pixels, token_type_ids=kinds).logits[0]


def _llava(pair: Pair, tokens: list[int], images: list[Any]) -> torch.Tensor:
    return pair.theirs(
        input_ids=_ids(pair, tokens),
        pixel_values=torch.cat([channels_first(pair, image.pixels.pixels) for image in images]),
    ).logits[0]


def _mistral3(pair: Pair, tokens: list[int], images: list[Any]) -> torch.Tensor:
    sizes = [image.pixels.pixels.shape[1:3] for image in images]
    height, width = (max(size) for size in zip(*sizes, strict=True))
    padded = torch.zeros(len(images), 3, height, width)
    for canvas, image, size in zip(padded, images, sizes, strict=True):
        canvas[:, : size[0], : size[1]] = channels_first(pair, image.pixels.pixels)[0]
    return pair.theirs(
        input_ids=_ids(pair, tokens), pixel_values=padded, image_sizes=torch.tensor(sizes)
    ).logits[0]


def _qwen25vl(pair: Pair, tokens: list[int], images: list[Any]) -> torch.Tensor:
    """Patches as its processor makes them: block by block, each with both frames."""
    options, rows, grids = pair.ours.vision.options, [], []
    for image in images:
        flat = patches(image.pixels.pixels[0], options.patch_size, options.merge)
        flat = normalised(flat, options.mean, options.std).reshape(len(flat), 3, 1, -1)
        rows.append(torch.from_numpy(flat.repeat(2, axis=2).reshape(len(flat), -1)))
        height, width = image.pixels.grid
        grids.append([1, height * options.merge, width * options.merge])
    ids = _ids(pair, tokens)
    return pair.theirs(
        input_ids=ids,
        pixel_values=torch.cat(rows),
        image_grid_thw=torch.tensor(grids),
        mm_token_type_ids=(ids == pair.theirs.config.image_token_id).int(),
    ).logits[0]


def _ids(pair: Pair, tokens: list[int]) -> torch.Tensor:
    return torch.tensor([[pair.theirs.config.image_token_id if t == PART else t for t in tokens]])


REFERENCES = {"gemma3": _gemma3, "llava": _llava, "mistral3": _mistral3, "qwen25vl": _qwen25vl}


def check_scores(pair: Pair, run: Run, number: int, inputs: list[Input]) -> None:
    """Every token of the prompt is as likely as by transformers, and so are the first tokens generated."""
    run.submit_inputs(number, inputs, prompt_logprobs=True, logprobs=True, num_predict=4)
    run.finish()
    generated = run.tokens(number)
    expected = pair.reference([*inputs, *map(Input, generated)])
    for place, (token, found) in enumerate(run.scored(number)):
        if place:
            assert abs(found - expected[place - 1, token]) < 1e-3, place
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
