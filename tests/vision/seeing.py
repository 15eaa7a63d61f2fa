"""Texts with pictures, run by our engine and by transformers' model."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import PIL.Image
import torch

from puna.batch import Image, ImagePart, Input
from puna.engine.requests import read_text
from puna.model.load import LoadedModel
from puna.vision.preparer.client import Preparer
from tests.engine.runs import Run
from tests.model.models.parity import check_close
from tests.tiny.vision.common import PART, SHOWN

AnyRun = TypeVar("AnyRun", bound=Run)


def picture(seed: int, width: int = 80, height: int = 60) -> PIL.Image.Image:
    """Return blurred coloured noise, different for each seed."""
    noise = np.random.default_rng(seed).integers(0, 256, (6, 8, 3)).astype(np.uint8)
    return PIL.Image.fromarray(noise).resize((width, height), PIL.Image.Resampling.BICUBIC)


def share_preparer(run: Run) -> None:
    """Let `run` share the previous run's preparer process if their towers prepare images the same way.

    Starting one takes longer than a test.
    """
    if (images := run.engine.images) is not None:
        reads_alike = pickle.dumps((type(images.tower), images.tower.options))
        if reads_alike not in _preparers:
            _preparers.clear()
            _preparers[reads_alike] = images.preparer
        images.preparer = _preparers[reads_alike]


#: The last process started, by the settings it prepares images with.
_preparers: dict[bytes, Preparer] = {}


def file_of(image: PIL.Image.Image, format: str = "PNG", **options: Any) -> bytes:
    written = io.BytesIO()
    image.save(written, format, **options)
    return written.getvalue()


@dataclass
class Pair:
    """Tiny vision model, ours and transformers'."""

    ours: LoadedModel
    theirs: Any
    config: Any  # of both models

    def run(self, kind: type[AnyRun] = Run, **settings: Any) -> AnyRun:
        """Return an engine that is stepped by hand."""
        run = kind(self.ours, **{"context": 256, "batch_size": 32, **settings})
        share_preparer(run)
        return run

    def inputs(self, run: Run, text: str, *pictures: PIL.Image.Image) -> list[Input]:
        """Return the inputs of a text with `[img-N]`."""
        assert run.engine.images is not None
        images = run.engine.images.read([file_of(each) for each in pictures])
        SHOWN.update({image.digest: each.size for image, each in zip(images, pictures, strict=True)})
        return read_text(text, images, self.ours.tokenizer, self.ours.vision)

    def reference(self, inputs: list[Input]) -> torch.Tensor:
        """Return transformers' log-probabilities [positions, vocab] after every input."""
        tokens = [PART if item.payload is not None else item.token for item in inputs]
        with torch.inference_mode():
            logits = self.config.logits(self.theirs, self.ours.vision.options, tokens, images_of(inputs))
            return torch.log_softmax(logits, dim=-1)

    def embedded(self, inputs: list[Input]) -> torch.Tensor:
        """Return transformers' image embeddings for the text model: [rows of all images, values of a row]."""
        if hasattr(self.config, "states"):  # its layers attend to images directly
            with torch.inference_mode():
                options, images = self.ours.vision.options, images_of(inputs)
                return torch.cat([self.config.states(self.theirs, options, image) for image in images])
        shown: list[torch.Tensor] = []

        def note(_: Any, __: Any, given: dict[str, Any]) -> None:
            if shown or given.get("inputs_embeds") is None:
                return
            places = torch.tensor([item.payload is not None for item in inputs])
            if len(places) == given["inputs_embeds"].shape[1]:  # not a call of the tower's own layers
                # Additions of later layers stand beside it, as in our rows.
                shown.append(given["inputs_embeds"][0, places])
                shown.extend(given.get("deepstack_visual_embeds") or ())

        hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in self.theirs.modules()]
        self.reference(inputs)
        for hook in hooks:
            hook.remove()
        return torch.cat(shown, dim=1)

    def encoded(self, image: Image, slice_rows: int) -> torch.Tensor:
        """Return our tower's output for an image, [rows, values of a row], `slice_rows` patches at a time."""
        reading = self.ours.vision.encode(image.pixels, slice_rows)
        while True:
            try:
                next(reading)
            except StopIteration as end:
                return torch.from_numpy(self.ours.ops.numpy(end.value).copy())


def images_of(inputs: list[Input]) -> list[Image]:
    """Return the images in a text, repeated as often as they occur."""
    images: list[Image] = []
    for item in inputs:
        if isinstance(item.payload, ImagePart):
            image = item.payload.image
            if not any(image is known for known in images[-1:]) or not item.payload.begin:
                images.append(image)
    return images


def check_scores(pair: Pair, run: Run, number: int, inputs: list[Input]) -> None:
    """Check that the log-probabilities of prompt tokens and first generated tokens are transformers'."""
    run.submit_inputs(number, inputs, prompt_logprobs=True, logprobs=True, num_predict=4)
    run.finish()
    generated = run.tokens(number)
    expected = pair.reference([*inputs, *map(Input, generated)])
    scored = run.scored(number)[1:]
    found = torch.tensor([logprob for _, logprob in scored])
    wanted = expected[torch.arange(len(scored)), torch.tensor([token for token, _ in scored])]
    possible = wanted.isfinite()  # a model with a token for images never says that token
    assert (found[~possible] == wanted[~possible]).all()
    check_close(pair.ours, found[possible], wanted[possible])
    check_answer(pair, run, number, inputs)


def check_answer(pair: Pair, run: Run, number: int, inputs: list[Input]) -> None:
    """Check that generated tokens are transformers' likeliest, and as likely."""
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
