"""EmbeddingGemma against Hugging Face transformers, on a tiny random model in float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.errors import ModelError, NotSupportedError
from puna.model.load import LoadedModel, load_model
from puna.ops import Backend
from tests.engine.runs import Run
from tests.model.models.parity import check_close, original
from tests.tiny.converted import converted
from tests.tiny.gemma3 import TinyEmbeddingGemma, stated

TEXTS = [[(11 * i + j * j) % 250 for j in range(3 + 23 * i)] for i in range(4)]
TINY = TinyEmbeddingGemma()


@pytest.fixture(scope="module")
def theirs() -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Return the body, which attends to later tokens too, and the matrices of the linears."""
    return original(TINY), torch.randn(160, 64) / 8, torch.randn(64, 160) / 12


@pytest.fixture(scope="module", params=["projected", "plain"])
def ours(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, theirs: Any, ops: Backend
) -> LoadedModel:
    _, widening, narrowing = theirs
    dense = {"dense_2.weight": widening.numpy(), "dense_3.weight": narrowing.numpy()}
    path = tmp_path_factory.mktemp("gemma") / "gemma.gguf"
    return load_model(tiny_gguf(path, dense if request.param == "projected" else {}), ops=ops)


def tiny_gguf(path: Path, dense: dict[str, np.ndarray]) -> Path:
    """Write a file of TINY with the linears `dense`."""
    found = stated(converted(original(TINY)), TINY)
    found.set({"pooling_type": 1})
    found.tensors |= dense
    return found.write(path)


def check_vectors(ours: LoadedModel, body: Any, linears: Sequence[torch.Tensor]) -> None:
    """Check that vectors are the `linears` applied to the mean of the hidden states of `body`."""
    run = Run(ours, batch_size=512, context=128)
    run.embed(0, *TEXTS, normalize=False)
    run.finish()
    for vector, tokens in zip(run.vectors(0), TEXTS, strict=True):
        ids = torch.tensor([tokens])
        with torch.inference_mode():
            expected = body(ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0].mean(0)
        for linear in linears:
            expected = linear @ expected
        check_close(ours, torch.from_numpy(vector), expected)


def test_vectors_match_the_reference(ours: LoadedModel, theirs: Any) -> None:
    body, *linears = theirs
    check_vectors(ours, body, linears if ours.model.widening is not None else [])  # type: ignore[attr-defined]


def test_half_a_projection_is_refused(tmp_path: Path) -> None:
    dense = {"dense_2.weight": np.ones((160, 64), np.float32)}
    path = tiny_gguf(tmp_path / "half.gguf", dense)
    with pytest.raises(
        ModelError, match=r"half\.gguf: one of the tensors 'dense_2.weight' and 'dense_3.weight'"
    ):
        load_model(path)


def test_an_encoder_does_not_generate(ours: LoadedModel) -> None:
    with pytest.raises(NotSupportedError, match="does not predict tokens"):
        ours.model.logits(np.zeros((1, 64), np.float32))


def test_windows_reach_half_their_size_to_both_sides(ours: LoadedModel) -> None:
    assert [layer.remembers.reach for layer in ours.model.options.layers] == [8, None, 8]  # type: ignore[union-attr]
