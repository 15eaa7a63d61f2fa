"""Rotary frequencies as a model's metadata defines them."""

from __future__ import annotations

import importlib
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from puna.ops import Rope, Sections, Yarn, default_backend
from tests.ops.torch_ops import TorchOps


@pytest.mark.parametrize(
    ("dims", "base", "context", "bounds"),
    [(64, 150000.0, 4096, (8, 18)), (128, 1e6, 32768, (23, 40)), (64, 10000.0, 4096, (10, 23))],
    ids=["gpt-oss", "qwen3", "deepseek"],
)
def test_yarn_gives_the_bounds_of_published_models(
    dims: int, base: float, context: int, bounds: tuple[int, int]
) -> None:
    assert Yarn(8.0, context).bounds(dims, base) == bounds


def transformers_frequencies(kind: str, head_dim: int, **parameters: Any) -> tuple[torch.Tensor, float]:
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install '.[test]'"
    )
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.LlamaConfig(
        hidden_size=2 * head_dim, num_attention_heads=2, head_dim=head_dim, max_position_embeddings=32768,
        rope_parameters={"rope_type": kind, **parameters},
    )  # fmt: skip
    frequencies, magnitude = ROPE_INIT_FUNCTIONS[kind](config, device=torch.device("cpu"))
    return frequencies, magnitude


@pytest.mark.parametrize(
    ("head_dim", "base", "factor", "context"),
    [(64, 150000.0, 32.0, 4096), (128, 1e6, 4.0, 32768), (80, 10000.0, 2.5, 2048)],
)
def test_yarn_matches_transformers(head_dim: int, base: float, factor: float, context: int) -> None:
    expected, magnitude = transformers_frequencies(
        "yarn", head_dim, rope_theta=base, factor=factor, original_max_position_embeddings=context
    )
    rope = Rope.build(head_dim, base, yarn=Yarn(factor, context))
    torch.testing.assert_close(torch.from_numpy(rope.frequencies), expected, rtol=1e-5, atol=0)
    assert rope.magnitude == pytest.approx(magnitude)


def test_linear_scaling_matches_transformers() -> None:
    expected, magnitude = transformers_frequencies("linear", 64, rope_theta=10000.0, factor=4.0)
    rope = Rope.build(64, 10000.0, linear_factor=4.0)
    torch.testing.assert_close(torch.from_numpy(rope.frequencies), expected, rtol=1e-6, atol=0)
    assert rope.magnitude == magnitude == 1


def test_factors_divide_frequencies_as_in_llama_3() -> None:
    """Llama 3's table of factors, recovered from transformers, gives its frequencies back."""
    expected, _ = transformers_frequencies(
        "llama3", 128, rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )  # fmt: skip
    plain = 500000.0 ** (-2 * torch.arange(64, dtype=torch.float64) / 128)
    factors = (plain / expected).float().numpy()
    published = [1.0, 1.2075, 1.5534, 2.0263, 2.6945, 3.6843, 5.2573, 8.0]  # pairs 28 to 35
    np.testing.assert_allclose(factors[28:36], published, rtol=1e-4)
    rope = Rope.build(128, 500000.0, factors=factors)
    torch.testing.assert_close(torch.from_numpy(rope.frequencies), expected, rtol=1e-6, atol=0)


def test_yarn_without_extrapolation_is_linear() -> None:
    rope = Rope.build(64, yarn=Yarn(4.0, 4096, attention_factor=0.5, extrapolation=0.0))
    np.testing.assert_allclose(rope.frequencies, Rope.build(64, linear_factor=4.0).frequencies)
    assert rope.magnitude == 0.5


def test_yarn_scales_magnitudes_as_published() -> None:
    assert Yarn(32.0, 4096).magnitude == pytest.approx(1 + 0.1 * math.log(32))
    assert Rope.build(64, yarn=Yarn(32.0, 4096), magnitude=2.0).magnitude == pytest.approx(
        2 + 0.2 * math.log(32)
    )


@pytest.mark.parametrize(
    ("model", "sections", "interleaved"),
    [
        ("qwen2_vl", (16, 24, 24), False),
        ("qwen2_vl", (32, 16, 16), False),
        ("qwen3_vl", (24, 20, 20), True),
        ("qwen3_vl", (30, 17, 17), True),
    ],
)
def test_several_axes_match_transformers(model: str, sections: tuple[int, ...], interleaved: bool) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[test]'")
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    name = {"qwen2_vl": "Qwen2VL", "qwen3_vl": "Qwen3VLText"}[model]
    parameters = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(sections)}
    config = SimpleNamespace(
        rope_parameters=parameters, hidden_size=256, num_attention_heads=2, head_dim=128,
        max_position_embeddings=512,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 2, 128, generator=generator)
    positions = torch.randint(0, 60, (9, 3), generator=generator, dtype=torch.int32)
    cosines, sines = getattr(module, f"{name}RotaryEmbedding")(config)(x, positions.T[:, None])
    expected, _ = module.apply_rotary_pos_emb(x[None], x[None], cosines, sines, unsqueeze_dim=2)
    rope = Rope.build(128, 10000.0, neox=True, sections=Sections(sections, interleaved))
    TorchOps(default_backend()).rope_(x, positions, rope)
    torch.testing.assert_close(x, expected[0], rtol=0, atol=3e-5)


def test_sections_repeat_when_there_are_more_pairs() -> None:
    axes = Rope.build(20, sections=Sections((1, 2, 1))).axes
    assert axes is not None
    assert axes.tolist() == [0, 1, 1, 2, 0, 1, 1, 2, 0, 1]
    axes = Rope.build(20, sections=Sections((2, 1, 1), interleaved=True)).axes
    assert axes is not None
    assert axes.tolist() == [0, 1, 2, 0] * 2 + [0, 1]


@pytest.mark.parametrize("neox", [False, True])
def test_rotating_twice_equals_rotating_by_the_sum(ops: TorchOps, neox: bool) -> None:
    """A context shift relies on this: cached keys are turned again, by the difference."""
    rope = Rope.build(32, 10000.0, neox=neox, yarn=Yarn(4.0, 64))
    x = torch.randn(5, 2, 48, generator=torch.Generator().manual_seed(0))
    at = torch.tensor([100, 101, 102, 103, 104], dtype=torch.int32)
    expected, shifted = x.clone(), x.clone()
    ops.rope_(expected, at - 77, rope)
    ops.rope_(shifted, at, rope)
    ops.rope_(shifted, torch.full_like(at, -77), rope.without_magnitude())
    torch.testing.assert_close(shifted, expected, rtol=0, atol=2e-6)


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="even"):
        Rope.build(7)
    with pytest.raises(ValueError, match="31 values for 32 pairs"):
        Rope.build(64, factors=np.ones(31))
    with pytest.raises(ValueError, match="float32"):
        Rope(np.ones(4))
    for sections, interleaved in (((), False), ((0, 0), False), ((4, -1), False), ((4, 4), True)):
        with pytest.raises(ValueError, match="rope sections are the pairs of each axis"):
            Rope.build(8, sections=Sections(sections, interleaved))
    with pytest.raises(ValueError, match=r"contiguous int32 \[4\]"):
        Rope(np.ones(4, np.float32), axes=np.zeros(3, np.int32))
    with pytest.raises(ValueError, match="numbered from 0, got -1"):
        Rope(np.ones(4, np.float32), axes=np.array([0, 1, -1, 0], np.int32))
