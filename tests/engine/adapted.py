"""Models with two adapters, and the results of their originals with the adapters merged into the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from puna.model.load import LoadedModel
from puna.options import AdapterFile, AdapterScale
from tests.engine.runs import Run
from tests.model.models.parity import reference_log_probabilities
from tests.tiny.adapters import TinyAdapter
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

PROMPT = [5, 17, 101, 33, 8, 250, 61, 99, 140, 12, 3]

Uses = tuple[tuple[str, float], ...]
MIXED: list[Uses] = [(), (("first", 1.0),), (("second", -0.5),), (("first", 0.7), ("second", 1.3))]

Tuned = tuple[LoadedModel, Callable[[Uses], Any]]


def files_of(*paths: Path) -> list[AdapterFile]:
    return [AdapterFile(str(path), name) for path, name in zip(paths, ("first", "second"), strict=False)]


def merging(model: Any, first: TinyAdapter, second: TinyAdapter) -> Callable[[Uses], Any]:
    """Return `model` with adapters merged into its weights."""
    made: dict[Uses, Any] = {}

    def merged(uses: Uses) -> Any:
        if uses not in made:
            theirs = copy.deepcopy(model)
            for name, scale in uses:
                theirs = {"first": first, "second": second}[name].merged(theirs, scale)
            made[uses] = theirs
        return made[uses]

    return merged


def adapted_llama(folder: Path) -> tuple[Path, list[AdapterFile], Callable[[Uses], Any]]:
    """Write a model of three layers and two adapters of some linears; see `merging` for the last."""
    config = TinyLlama(layers=3)
    model = config.build()
    first = TinyAdapter(("q_proj", "v_proj", "down_proj"), seed=5)
    second = TinyAdapter(("k_proj", "up_proj", "lm_head"), rank=2, alpha=3.0, seed=6)
    files = files_of(first.write_peft(folder / "a", model), second.write_peft(folder / "b", model))
    path = tiny_llama_gguf(folder / "model.gguf", config, model=model)
    return path, files, merging(model, first, second)


def wanted(uses: Uses) -> list[AdapterScale]:
    return [AdapterScale(name=name, scale=scale) for name, scale in uses]


def scores_of(run: Run, number: int) -> np.ndarray:
    return np.array([score for _, score in run.scored(number)[1:]])


def check_mixed(tuned: Tuned) -> list[list[float]]:
    """Check that requests of one batch with different adapters match merged weights, as they do alone.

    Returns the scores of their prompts.
    """
    ours, merged = tuned
    together, alone = Run(ours, batch_size=64), Run(ours, batch_size=64)
    settings = {"prompt_logprobs": True, "num_predict": 6, "temperature": 0, "ignore_eos": True}
    for number, uses in enumerate(MIXED):
        together.submit(number, PROMPT, lora=wanted(uses), **settings)
    together.finish()
    assert max(together.rows) > len(PROMPT), "they were not in one batch"
    found = []
    for number, uses in enumerate(MIXED):
        answer = together.tokens(number)
        expected = reference_log_probabilities(merged(uses), [*PROMPT, *answer])
        following = expected[: len(PROMPT) - 1].gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]
        scores = scores_of(together, number)
        assert np.abs(scores - following.numpy()).max() < 1e-3
        assert answer == expected[len(PROMPT) - 1 : -1].argmax(-1).tolist()
        alone.submit(number, PROMPT, lora=wanted(uses), **settings)
        alone.finish()
        assert (scores_of(alone, number) == scores).all()
        assert alone.tokens(number) == answer
        found.append(scores)
    differences = [np.abs(a - b).max() for i, a in enumerate(found) for b in found[:i]]
    assert min(differences) > 0.05, "the adapters change too little to be seen"
    return [scores.tolist() for scores in found]


def check_alone(ours: LoadedModel, tokens: int) -> None:
    """Check that streams with different scales of an adapter differ, and are each the same as alone."""
    together, alone = Run(ours), Run(ours)
    settings = {"num_predict": tokens, "temperature": 0, "ignore_eos": True}
    scales = [0.0, 1.0, 2.0]
    for number, scale in enumerate(scales):
        together.submit(number, PROMPT, lora=[AdapterScale(0, scale=scale)], **settings)
    together.finish()
    for number, scale in enumerate(scales):
        alone.submit(number, PROMPT, lora=[AdapterScale(0, scale=scale)], **settings)
        alone.finish()
        assert alone.tokens(number) == together.tokens(number)
    assert len({tuple(together.tokens(number)) for number in range(3)}) == 3
