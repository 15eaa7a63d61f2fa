"""Inputs that are not text: images in the place of tokens.

Models take them, but nothing makes them from a request yet.
"""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from puna.batch import ImageStates, Input
from puna.errors import RequestError
from puna.model.load import LoadedModel, load_model
from puna.ops import default_backend
from tests.engine.runs import Run, Watched
from tests.tiny.mllama import IMAGE, TinyMllama, tiny_mllama_gguf


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Return a model whose text layers attend to images."""
    return load_model(tiny_mllama_gguf(tmp_path_factory.mktemp("mllama") / "mllama.gguf", TinyMllama()))


def image(seed: int) -> Input:
    states = np.random.default_rng(seed).standard_normal((6, 64), np.float32)
    return Input(IMAGE, payload_hash=1000 + seed, payload=ImageStates(default_backend().array(states)))


def text(*tokens: int) -> list[Input]:
    return [Input(token) for token in tokens]


def alone(seeing: LoadedModel, inputs: list[Input]) -> list[int]:
    run = Run(seeing)
    run.submit_inputs(0, inputs, num_predict=6)
    run.finish()
    return run.tokens(0)


def images_read(run: Watched) -> int:
    return sum(len(batch.payloads) for batch in run.batches)


def test_tags_are_text_for_a_model_without_images(tiny: LoadedModel) -> None:
    run = Watched(tiny)
    run.submit(0, "a[img-0]b", num_predict=1)
    run.finish()
    assert tiny.tokenizer.decode(run.batches[0].tokens.tolist()[1:]) == "a[img-0]b"


def test_an_empty_prompt_is_refused(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    Run(tiny).one("", num_predict=1)  # the begin token is enough
    monkeypatch.setattr(tiny.tokenizer, "add_bos", False)
    with pytest.raises(RequestError, match="the prompt is empty"):
        Run(tiny).submit(0, "")


def test_a_cached_image_is_not_read_again(seeing: LoadedModel) -> None:
    run = Watched(seeing)
    inputs = [*text(5, 6), image(1), *text(7, 8, 9)]
    run.submit_inputs(0, inputs, num_predict=6)
    run.finish()
    assert images_read(run) == 1
    again = [*text(5, 6), image(1), *text(7, 8, 10, 11)]
    run.submit_inputs(1, again, num_predict=6)
    run.finish()
    assert (run.done(1).cached, images_read(run)) == (5, 1)
    assert run.tokens(1) == alone(seeing, again)


def test_another_image_is_a_different_input(seeing: LoadedModel) -> None:
    run = Watched(seeing)
    prompts = [[*text(5, 6), image(seed), *text(7, 8, 9)] for seed in (1, 2)]
    for number, inputs in enumerate(prompts):
        run.submit_inputs(number, inputs, num_predict=6)
        run.finish()
    assert (run.done(1).cached, images_read(run)) == (2, 2)
    answers = [alone(seeing, inputs) for inputs in prompts]
    assert [run.tokens(0), run.tokens(1)] == answers
    assert answers[0] != answers[1]


def test_an_image_that_cannot_be_read_fails_its_request_alone(seeing: LoadedModel) -> None:
    run = Run(seeing)
    good = [*text(5, 6), image(1), *text(7)]
    run.submit_inputs(0, good, num_predict=6)
    run.submit_inputs(1, [*text(9), Input(IMAGE, payload_hash=3, payload="no states"), *text(7)])
    run.finish()
    assert run.failed(1).kind == "GenerationError"
    assert run.tokens(0) == alone(seeing, good)
    run.submit_inputs(2, good, num_predict=6)
    run.finish()
    assert run.tokens(2) == run.tokens(0)


def test_the_prefix_cache_keeps_no_images_alive(seeing: LoadedModel) -> None:
    """Another request with the same image supplies its own."""
    run = Run(seeing)
    inputs = [*text(5, 6), image(1), *text(7)]
    released = weakref.ref(inputs[2].payload.states)
    run.submit_inputs(0, inputs, num_predict=6)
    run.finish()
    del inputs
    gc.collect()
    assert released() is None
    run.submit_inputs(1, [*text(5, 6), image(1), *text(7)], num_predict=6)
    run.finish()
    assert (run.done(1).cached, run.tokens(1)) == (3, run.tokens(0))
