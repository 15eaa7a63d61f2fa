"""The two ways to attend give the same, and the choice between them is the environment's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from puna.engine.engine import Engine
from puna.engine.events import Chunk, Generate
from puna.errors import NotSupportedError
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.types import KVTypes
from puna.model.input import Batch
from puna.model.load import LoadedModel, load_model
from puna.nn import attention
from puna.options import Options
from tests.tiny import TinyLlama, tiny_llama_gguf

PROMPTS = ([3, 1, 4, 1, 5], list(range(60)), [200], [250, 7] * 10)


def log_probabilities(loaded: LoadedModel, types: str, backend: str) -> torch.Tensor:
    """Of a long and a short sequence, read in parts and together."""
    cache = loaded.make_cache(sequences=2, context=128, types=KVTypes.parse(types))
    found = []
    with attention.use(backend), torch.inference_mode():
        for first, second in ((range(50), range(3)), (range(50, 51), range(3, 20)), (range(51, 90), ())):
            positions = [*first, *second]
            owners = [0] * len(first) + [1] * len(second)
            tokens = [(7 * p + 5 * s) % 256 for p, s in zip(positions, owners, strict=True)]
            batch = Batch.of(tokens, positions, owners, list(range(len(tokens))))
            cache.start_forward(batch)
            found.append(torch.log_softmax(loaded.model.forward(batch, cache), dim=-1))
    return torch.cat(found)


@pytest.mark.parametrize(("layers", "types"), [(2, "f32"), (1, "f16"), (1, "q8_0"), (1, "q4_0,bf16")])
def test_torchs_attention_agrees_with_index_lists(tmp_path: Path, layers: int, types: str) -> None:
    # With one layer what is stored does not depend on attention, so that rounding cannot part the two.
    config = TinyLlama(hidden=128, layers=layers, heads=4, kv_heads=2)
    loaded = load_model(tiny_llama_gguf(tmp_path / "tiny.gguf", config))
    ours = log_probabilities(loaded, types, "lists")
    torch.testing.assert_close(log_probabilities(loaded, types, "sdpa"), ours, rtol=0, atol=1e-4)


def test_the_engine_generates_the_same(tmp_path: Path) -> None:
    loaded = load_model(tiny_llama_gguf(tmp_path / "tiny.gguf"))

    def generated(backend: str) -> dict[int, list[int]]:
        engine = Engine(loaded, context=128, parallel=4, batch_size=32, cache_types=KVTypes.parse("f32"))
        tokens: dict[int, list[int]] = {number: [] for number in range(len(PROMPTS))}
        options = Options(temperature=0, num_predict=24)
        with attention.use(backend):
            for number, prompt in enumerate(PROMPTS):
                engine.submit(
                    Generate(id=number, prompt=prompt, options=options, ignore_eos=True),
                    lambda event: tokens[event.id].extend(event.tokens) if isinstance(event, Chunk) else None,
                )
            while engine.step():
                pass
        return tokens

    ours = generated("lists")
    assert all(len(answer) == 24 for answer in ours.values())
    assert generated("sdpa") == ours


def test_what_torchs_attention_cannot_do_is_said() -> None:
    cache = CausalCache([KVShape(1, 8, 8)], sequences=1, context=8)
    cache.start_forward(Batch.of([0], [0], [0], []))
    row = torch.ones(1, 1, 8)
    with attention.use("sdpa"), pytest.raises(NotSupportedError, match="run it without PUNA_ATTENTION=sdpa"):
        attention.attention(row, row, row, cache.layer(0), 1.0, softcap=30.0)


@pytest.mark.parametrize(("value", "chosen"), [("", "_by_lists"), ("lists", "_by_lists"), ("sdpa", "sdpa")])
def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch, value: str, chosen: str) -> None:
    monkeypatch.setenv("PUNA_ATTENTION", value)
    assert attention._choose() is getattr(attention, chosen)


def test_an_unknown_choice_is_refused() -> None:
    with (
        pytest.raises(ValueError, match=r"attention 'flash' is none of lists, sdpa \(see PUNA_ATTENTION\)"),
        attention.use("flash"),
    ):
        pass
