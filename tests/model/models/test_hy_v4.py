"""Hy 4's residual of several streams: any split of a prompt, and files with settings that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from puna.errors import ModelError
from tests.model.models.parity import (
    FLOATS,
    check_restored,
    check_shifted,
    original,
    our_log_probabilities,
    random_tokens,
    read,
)
from tests.model.models.test_deepseek2 import loaded
from tests.model.models.test_deepseek32 import with_settings
from tests.tiny.latent import HY4


def test_rows_have_the_same_bits_in_any_batch(tmp_path: Path) -> None:
    """A prompt in one batch, in pieces beside others, and after a shared prefix."""
    ours = loaded(tmp_path, HY4)
    tokens = random_tokens(ours, 70, 6)
    whole = our_log_probabilities(ours, tokens, [70])
    assert torch.equal(our_log_probabilities(ours, tokens, [1, 30, 20, 19]), whole)
    cache = ours.make_cache(sequences=2, context=128, types=FLOATS)
    read(ours, cache, 0, [*tokens[:50], *range(20)])
    cache.copy_prefix(0, 1, 50)
    assert torch.equal(read(ours, cache, 1, tokens[50:]), whole[50:])


def test_saved_keys_are_restored(tmp_path: Path) -> None:
    ours = loaded(tmp_path, HY4)
    check_restored(ours, random_tokens(ours, 60, 5), saved=40)


def test_shifted_keys_equal_those_computed_at_the_new_positions(tmp_path: Path) -> None:
    layer = {"num_hidden_layers": 1, "indexer_types": ["full"], "mlp_layer_types": ["dense"]}
    tiny = with_settings(HY4, **layer)
    check_shifted(loaded(tmp_path, tiny), original(tiny))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("swiglu_clamp_exp", None), ("hyper_connection.magnitude", 2.0), ("hyper_connection.epsilon", 1e-6),
        ("swiglu_clamp_exp", [0.5, 0.5, 0.5, 0.0]),
    ],
)  # fmt: skip
def test_each_setting_changes_the_result(tmp_path: Path, key: str, value: Any) -> None:
    found = []
    for settings in ({}, {key.replace(".", "__"): value}):
        folder = tmp_path / str(len(settings))
        folder.mkdir()
        ours = loaded(folder, HY4, **settings)
        found.append(our_log_probabilities(ours, random_tokens(ours, 30, 7), [30]))
    assert (found[0] - found[1]).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("hyper_connection.count", None, "metadata key 'hy_v4.hyper_connection.count' is missing"),
        ("hyper_connection.count", 1000, "is 1000, more than 64"),
        ("hyper_connection.count", 2, "tensor 'blk.0.hc_attn_fn.weight' has 6x192 values, expected 4x128"),
        ("hyper_connection.magnitude", 0.0, "magnitude' should be above 0, but is 0.0"),
        ("swiglu_clamp_exp", [1.0], "should have a limit for each of the 4 layers"),
        ("swiglu_clamp_exp", [1.0, 1.0, 1.0, -1.0], "should have a limit for each of the 4 layers"),
        ("attention.indexer.types", [False, True, True, True], "has no indexer for the first layer"),
        ("attention.indexer.top_k", None, "metadata key 'hy_v4.attention.indexer.top_k' is missing"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, key: str, value: Any, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        loaded(tmp_path, HY4, **{key.replace(".", "__"): value})
