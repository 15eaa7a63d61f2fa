"""Models, caches and the engine on a backend whose arrays can be read only through it.

Code that assumes memory the host can read, or uses more of an array than `puna.ops.Array` declares, fails
here. The numbers must still be those of transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from puna.model.load import LoadedModel, load_model
from puna.ops import backend_named
from tests.engine.runs import Run
from tests.model.models import images
from tests.model.models.parity import (
    FLOATS,
    check_greedy,
    original,
)
from tests.ops.model_pairs import NAMES, check_pieces, check_reuse, pair_of
from tests.ops.odd_backend import OddArray, OddBackend
from tests.tiny.bert import TinyBert, tiny_bert_gguf
from tests.tiny.encoders import TinyModernBert, TinyNomicBertMoe, tiny_encoder_gguf
from tests.tiny.gemma3 import TinyGemma3, tiny_gemma3_gguf
from tests.tiny.jina import TinyJinaBertV2
from tests.tiny.mllama import TinyMllama, tiny_mllama_gguf
from tests.tiny.t5 import TinyT5, tiny_t5_gguf

ODD = OddBackend()
PROMPT, KEPT = list(range(30)), list(range(40, 60))


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Any]:
    return pair_of(request.param, ODD, tmp_path_factory.mktemp("odd"))


def test_log_probabilities_agree(pair: tuple[LoadedModel, Any]) -> None:
    check_pieces(*pair)


def test_log_probabilities_agree_after_prefix_reuse(pair: tuple[LoadedModel, Any]) -> None:
    check_reuse(*pair)


def test_greedy_output_agrees_token_for_token(pair: tuple[LoadedModel, Any]) -> None:
    check_greedy(*pair, count=12)


def test_text_looks_at_images(tmp_path: Path) -> None:
    config = TinyMllama()
    theirs = original(config)
    ours = load_model(tiny_mllama_gguf(tmp_path / "mllama.gguf", config, model=theirs), ops=ODD)
    text = images.Text.random(30, {4: 5, 12: 3, 13: 4}, hidden=config.hidden, seed=3)
    cache = ours.make_cache(sequences=2, context=64, types=FLOATS)
    found = [images.read(ours, cache, [images.Part(1, text, *part)])[0] for part in ((0, 10), (10, 30))]
    expected = images.reference_log_probabilities(theirs, text)
    assert (torch.cat(found) - expected).abs().max() < 1e-3


def test_a_conversation_gives_the_same_as_on_the_reference(tmp_path: Path) -> None:
    """Prefix reuse, a context shift, sampling, log-probabilities, saving and restoring."""
    path = tiny_gemma3_gguf(tmp_path / "gemma3.gguf", TinyGemma3())
    answers, files = [], []
    for ops in (ODD, backend_named("reference")):
        loaded = load_model(path, ops=ops)
        run = Run(loaded, context=48)
        options = {"temperature": 0.7, "seed": 5, "logprobs": True, "top_logprobs": 2}
        run.submit(0, PROMPT, num_predict=40, **options)
        run.finish()
        assert run.done(0).shifted
        run.submit(1, PROMPT[:25], num_predict=1)
        run.finish()
        run.submit(2, [*PROMPT[:25], 7], num_predict=3)
        run.finish()
        assert run.done(2).cached > 0
        run.submit(3, KEPT, num_predict=1)
        run.finish()
        run.engine.start()
        files.append(tmp_path / f"{ops.name}.safetensors")
        run.engine.save_prompt(KEPT, files[-1])
        run.engine.close()
        other = Run(loaded, context=48)
        other.engine.start()
        assert other.engine.load_prompt(files[0]) == KEPT  # whichever backend saved it
        other.engine.close()
        answers.append((run.tokens(0), run.tokens(2)))
    assert answers[0] == answers[1]
    assert contents(files[0]) == contents(files[1])


def contents(path: Path) -> list[Any]:
    with safe_open(path, framework="np") as file:
        return [(name, file.get_tensor(name).tolist()) for name in sorted(file.keys())]


def test_an_encoder_reads_prompts_as_on_the_reference(tmp_path: Path) -> None:
    path = tiny_t5_gguf(tmp_path / "t5.gguf", TinyT5())
    answers = []
    for ops in (ODD, backend_named("reference")):
        run = Run(load_model(path, ops=ops))
        run.submit(0, PROMPT, num_predict=8)
        run.submit(1, KEPT, num_predict=8)
        run.finish()
        answers.append((run.tokens(0), run.tokens(1)))
    assert answers[0] == answers[1]


#: Layers with rotations, windows, experts, and biases by distance.
ENCODERS = {
    "bert": lambda path: tiny_bert_gguf(path, TinyBert()),
    "nomic-bert-moe": lambda path: tiny_encoder_gguf(path, TinyNomicBertMoe()),
    "modern-bert": lambda path: tiny_encoder_gguf(path, TinyModernBert()),
    "jina-bert-v2": lambda path: tiny_encoder_gguf(path, TinyJinaBertV2(kind="code")),
    "t5encoder": lambda path: tiny_t5_gguf(path, TinyT5(decoder=False, gated=False)),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_embeddings_equal_those_of_the_reference(tmp_path: Path, name: str) -> None:
    path = ENCODERS[name](tmp_path / "encoder.gguf")
    found = []
    for ops in (ODD, backend_named("reference")):
        run = Run(load_model(path, ops=ops))
        run.embed(0, [3, 4, 5, 6], [7, 8])
        run.finish()
        found.append(run.vectors(0))
    assert np.array_equal(*found)


@pytest.mark.parametrize(
    "use",
    [
        np.asarray, torch.as_tensor, list, bool, int, float, memoryview, np.sum, lambda a: a == a,
        lambda a: 1 in a, lambda a: a.sum(), lambda a: a.tolist(), lambda a: np.ones(1) + a,
        lambda a: a @ a, lambda a: a.T, lambda a: a[np.array([0])], lambda a: a + np.ones(1),
        lambda a: a.__setitem__(0, 1),
    ],
)  # fmt: skip
def test_odd_arrays_refuse_everything_undeclared(use: Any) -> None:
    with pytest.raises((TypeError, AttributeError, AssertionError, RuntimeError)):
        use(OddArray(np.ones(1)))


def test_operations_do_not_see_indices_that_were_not_uploaded() -> None:
    buffer = ODD.index_buffer(2, 3)
    buffer.host[:] = 5
    buffer.upload([(1, 4)])
    assert ODD.numpy(buffer.array).tolist() == [[-7, 5, 5], [5, -7, -7]]
