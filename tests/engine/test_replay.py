"""A replayed decode step gives the model's logits bit for bit, whatever happened to the sequences before."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puna.batch import Batch, BatchArrays
from puna.engine.executor import Replay
from puna.errors import CacheFullError
from puna.kvcache.cache import Cache
from puna.kvcache.types import KVTypes
from puna.model.load import LoadedModel, load_model
from puna.ops import default_backend
from tests.processors import NOT_BUILT
from tests.tiny.compressed import DEEPSEEK_V4
from tests.tiny.decoders import TinyDecoder, tiny_decoder_gguf
from tests.tiny.gemma3 import TinyGemma3, tiny_gemma3_gguf
from tests.tiny.gemmas import TinyGemma3n, TinyGemma4
from tests.tiny.glm5_next import GLM5_NEXT
from tests.tiny.hybrids import QWEN4
from tests.tiny.latent import DEEPSEEK_V2, DEEPSEEK_V3, GLM_DSA, HY4, MISTRAL4
from tests.tiny.lfm2 import tiny_lfm2_gguf
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.tiny.llama4 import TinyLlama4, tiny_llama4_gguf
from tests.tiny.mamba import FALCON_H1, GRANITE_HYBRID, MAMBA2, NEMOTRON_H_LATENT
from tests.tiny.minimax import MINIMAX_M3
from tests.tiny.rwkv import RWKV7
from tests.tiny.seeded import SEEDED

pytestmark = pytest.mark.skipif(default_backend().name != "cpu", reason=NOT_BUILT)

STREAMS = 9


class Pair:
    """The same sequences in two caches, one evaluated with replays and one without."""

    def __init__(self, loaded: LoadedModel, types: str = "f16", streams: int = STREAMS) -> None:
        self.model = loaded.model
        kinds = KVTypes.parse(types)
        self.caches = [loaded.make_cache(sequences=streams, context=96, types=kinds) for _ in range(2)]
        self.replay = Replay(self.model, self.caches[0])
        self.vocab = loaded.tokenizer.vocab_size
        self.dice = random.Random(3)

    def batch(self, rows: dict[int, int]) -> Batch:
        """Return the next `rows[sequence]` inputs of each sequence, with logits of the last of each."""
        sequences = [sequence for sequence, count in rows.items() for _ in range(count)]
        positions = [
            self.caches[1].length(sequence) + i for sequence, count in rows.items() for i in range(count)
        ]
        tokens = [self.dice.randrange(self.vocab) for _ in sequences]
        batch = Batch.of(tokens, positions, sequences, [])
        last = [i for i in range(len(sequences)) if [*sequences, -1][i + 1] != sequences[i]]
        batch.outputs = None if len(last) == len(tokens) else np.array(last)
        return batch

    def step(self, *decoding: int, **prompts: int) -> np.ndarray:
        """Evaluate a token for each of `decoding` (`s3=5`: five of sequence 3); compare and return logits."""
        rows = dict.fromkeys(decoding, 1) | {int(k[1:]): count for k, count in prompts.items()}
        batch = self.batch(rows)
        self.caches[0].start_forward(batch)
        replayed = self.model.ops.numpy(self.replay.forward(batch)).copy()
        self.caches[1].start_forward(batch)
        ops = self.model.ops
        expected = ops.numpy(self.model.forward(batch.on(ops), self.caches[1]))
        assert np.array_equal(replayed.view(np.int32), expected.view(np.int32))
        return expected

    def both(self, operation: str, *arguments: Any) -> None:
        for cache in self.caches:
            getattr(cache, operation)(*arguments)

    @property
    def proven(self) -> list[int]:
        """Return the batch sizes that are replayed."""
        return sorted(kind.rows for kind, step in self.replay._steps.items() if step.proven)


@pytest.mark.parametrize("types", ["f16", "f32", "bf16,f32"])
def test_every_number_of_streams_is_replayed_to_the_bit(tiny: LoadedModel, types: str) -> None:
    pair = Pair(tiny, types)
    for sequence in range(STREAMS):
        pair.step(**{f"s{sequence}": 3 + sequence})
    for streams in range(1, STREAMS + 1):
        for _ in range(5):
            pair.step(*range(streams))
    assert pair.proven == list(range(1, STREAMS + 1))


def test_replays_choose_experts_again(tmp_path: Path) -> None:
    mixtral = load_model(tiny_llama_gguf(tmp_path / "mixtral.gguf", TinyLlama(experts=4)))
    pair = Pair(mixtral)
    for streams in (1, 2, 5):
        for _ in range(6):
            pair.step(*range(streams))
    assert pair.proven == [1, 2, 5]


def test_replays_choose_experts_by_the_layers_input(tmp_path: Path) -> None:
    path = SEEDED["smallthinker-windows"].contents().write(tmp_path / "thinker.gguf")
    pair = Pair(load_model(path))
    for streams in (1, 2, 5):
        for _ in range(6):
            pair.step(*range(streams))
    assert pair.proven == [1, 2, 5]


@pytest.mark.parametrize(
    "tiny",
    [DEEPSEEK_V3, DEEPSEEK_V2, MISTRAL4, GLM_DSA, MINIMAX_M3, HY4, DEEPSEEK_V4, GLM5_NEXT],
    ids=["V3", "V2", "mistral4", "glm-dsa", "minimax-m3", "hy_v4", "V4", "glm5-next"],
)
def test_latents_expert_groups_and_query_temperatures_are_replayed(tmp_path: Path, tiny: TinyDecoder) -> None:
    pair = Pair(load_model(tiny_decoder_gguf(tmp_path / "tiny.gguf", tiny)))
    pair.step(s0=40)  # beyond the original context
    for streams in (1, 2, 5):
        for _ in range(6):
            pair.step(*range(streams))
    assert pair.proven == [1, 2, 5]


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_windows_keep_sliding_in_replays(tmp_path: Path, softcap: float | None) -> None:
    config = TinyGemma3(layers=3, pattern=3, window=6, softcap=softcap)
    pair = Pair(load_model(tiny_gemma3_gguf(tmp_path / "gemma3.gguf", config)))
    for streams in (1, 2, 5):
        for _ in range(12):
            pair.step(*range(streams))
    assert pair.proven == [1, 2, 5]


@pytest.mark.parametrize(
    "config",
    [
        TinyGemma3n(),
        TinyGemma4(settings={"num_kv_shared_layers": 2}, layer_inputs=16),
        TinyGemma4(
            settings={"enable_moe_block": True, "num_experts": 8, "top_k_experts": 3,
                      "moe_intermediate_size": 32},
            metadata={"expert_used_count": 3},
        ),
    ],
    ids=["gemma3n", "layer inputs", "experts"],
)  # fmt: skip
def test_replays_recompute_streams_and_per_layer_embeddings(tmp_path: Path, config: TinyGemma4) -> None:
    pair = Pair(load_model(tiny_decoder_gguf(tmp_path / "gemma.gguf", config)))
    for streams in (1, 2, 5):
        for _ in range(12):
            pair.step(*range(streams))
    pair.step(s0=7, s3=2)
    assert pair.proven == [1, 2, 5]


def test_several_kinds_of_layers_are_replayed_across_chunks(tmp_path: Path) -> None:
    """The cache has several kinds, one of which forgets, and positions change the temperature of queries."""
    config = TinyLlama4(chunk=8, no_rope_interval=2, expert_interval=2, floor_scale=3)
    pair = Pair(load_model(tiny_llama4_gguf(tmp_path / "llama4.gguf", config)))
    pair.step(s1=13)
    for streams in (1, 2, 5):
        for _ in range(20):
            pair.step(*range(streams))
    pair.both("copy_prefix", 0, 3, pair.caches[1].length(0))
    for _ in range(10):
        pair.step(3, 1)
    assert pair.proven == [1, 2, 5]


def test_replays_find_recurrent_states(tmp_path: Path) -> None:
    pair = Pair(load_model(tiny_lfm2_gguf(tmp_path / "lfm2.gguf")))
    for sequence in range(STREAMS):
        pair.step(**{f"s{sequence}": 20 + sequence})
    for round_ in range(24):
        chosen = pair.dice.sample(range(STREAMS), 1 + round_ % 3)
        if round_ % 5 == 3:  # one is cut to the end of its prompt, and others share its prefix
            first, *others = chosen
            pair.both("remove", first, pair.caches[1].resume_point(first, 25 + first))
            for other in others:
                pair.both("copy_prefix", first, other, pair.caches[1].length(first))
        pair.step(*chosen)
    pair.step(s0=3, s4=40)
    pair.step(0, 1, 4)
    assert pair.proven == [1, 2, 3]


@pytest.mark.parametrize(
    "tiny", [MAMBA2, GRANITE_HYBRID, FALCON_H1, NEMOTRON_H_LATENT, RWKV7, QWEN4], ids=lambda tiny: tiny.hf
)
def test_states_are_replayed_alone_and_beside_attention(tmp_path: Path, tiny: TinyDecoder) -> None:
    pair = Pair(load_model(tiny_decoder_gguf(tmp_path / "model.gguf", tiny)))
    pair.step(s1=13)
    for streams in (1, 2, 5):
        for _ in range(6):
            pair.step(*range(streams))
    assert pair.proven == [1, 2, 5]


def test_streams_may_come_and_go_and_change_slots(tiny: LoadedModel) -> None:
    pair = Pair(tiny)
    for sequence in range(STREAMS):
        pair.step(**{f"s{sequence}": 1 + 2 * sequence})
    for round_ in range(40):
        chosen = pair.dice.sample(range(STREAMS), 1 + round_ % 4)
        if round_ % 7 == 3:  # one ends, and another prompt takes its slot while others continue
            ended, *others = chosen
            pair.both("remove", ended, 0)
            pair.step(*others, **{f"s{ended}": 6})
        else:
            pair.step(*chosen)
    assert pair.proven == [1, 2, 3, 4]


def test_replays_see_shared_prefixes_and_shifts(tiny: LoadedModel) -> None:
    pair = Pair(tiny)
    pair.step(s0=20)
    for _ in range(4):
        pair.step(0)
    pair.both("copy_prefix", 0, 1, 15)
    for _ in range(4):
        pair.step(0, 1)
    pair.both("remove", 0, 4, 10)  # later positions move down, as copies where cells are shared
    for _ in range(4):
        pair.step(0, 1)
    pair.both("remove", 1, 7)
    for _ in range(3):
        pair.step(1, 0)
    assert pair.proven == [1, 2]


def test_nothing_stale_is_used_after_larger_batches_move_the_buffers(tiny: LoadedModel) -> None:
    pair = Pair(tiny)
    for _ in range(4):
        pair.step(0)
    before = pair.caches[0].generation
    pair.step(s1=80)  # more rows than the buffers hold
    assert pair.caches[0].generation != before
    for _ in range(4):
        pair.step(0)
    assert pair.proven == [1]


def test_a_model_that_computes_with_numpy_runs_unrecorded(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forward = tiny.model.forward
    monkeypatch.setattr(tiny.model, "forward", lambda batch, cache: np.tanh(forward(batch, cache)))
    pair = Pair(tiny)
    with caplog.at_level("DEBUG", "puna.engine"):
        for _ in range(6):
            pair.step(0, 1)
    assert pair.proven == []
    assert [record.message for record in caplog.records] == ["Llama runs without replay: it uses numpy.tanh"]


def test_a_model_that_reads_values_runs_unrecorded(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forward = tiny.model.forward

    def by_position(batch: BatchArrays, cache: Cache) -> np.ndarray:
        return forward(batch, cache) * (1 + int(tiny.ops.numpy(batch.positions).max()))

    monkeypatch.setattr(tiny.model, "forward", by_position)
    pair = Pair(tiny)
    with caplog.at_level("DEBUG", "puna.engine"):
        for sequence in (0, 1, 2, 3, 2, 1):
            pair.step(sequence)
    assert pair.proven == []
    assert [record.message for record in caplog.records] == [
        "Llama runs without replay: it reads an array's values"
    ]


def test_a_pass_that_depends_on_outside_state_is_detected(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forward, calls = tiny.model.forward, iter(range(100))

    def drifting(batch: BatchArrays, cache: Cache) -> np.ndarray:
        return forward(batch, cache) * (1 + next(calls) // 2)

    monkeypatch.setattr(tiny.model, "forward", drifting)
    pair = Pair(tiny)
    with caplog.at_level("WARNING", "puna.engine"):
        for _ in range(6):
            pair.step(0)  # the pair calls it twice per step, with the same factor
    assert pair.proven == []
    assert "its logits differ" in caplog.text


def test_a_cache_can_opt_out_of_replays(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(tiny)
    monkeypatch.setattr(type(pair.caches[0]), "generation", None)
    for _ in range(4):
        pair.step(0)
    assert not pair.replay._steps


def test_the_environment_switches_replays_off(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_REPLAY", "0")
    pair = Pair(tiny)
    for _ in range(4):
        pair.step(0)
    assert not pair.replay._steps


def test_errors_match_those_of_an_ordinary_pass_and_can_be_undone(tiny: LoadedModel) -> None:
    pair = Pair(tiny)
    for _ in range(4):
        pair.step(0)
    assert pair.proven == [1]
    cache = pair.caches[0]
    length = cache.length(0)
    bad = Batch.of([pair.vocab + 5], [length], [0], [])
    bad.outputs = None
    cache.start_forward(bad)
    with pytest.raises(IndexError, match=r"'token_embd\.weight' has \d+ rows"):
        pair.replay.forward(bad)
    cache.undo_forward()
    assert cache.length(0) == length
    pair.step(0)
    assert pair.proven == [1]


def test_a_full_cache_is_refused_before_anything_runs(tiny: LoadedModel) -> None:
    pair = Pair(tiny, streams=1)
    pair.step(s0=90)
    for _ in range(6):
        pair.step(0)
    with pytest.raises(CacheFullError):
        pair.step(0)


def test_programs_of_all_sizes_share_their_memory(tiny: LoadedModel) -> None:
    pair = Pair(tiny, streams=16)
    sizes = []
    for streams in range(16, 8, -1):
        for _ in range(4):
            pair.step(*range(streams))
        (recorder,) = pair.replay._recorders.values()
        sizes.append(recorder.memory.nbytes)
    assert sizes == sizes[:1] * 8
    for streams in range(9, 17):  # each still gives its own results
        pair.step(*range(streams))


def test_batches_of_very_many_rows_are_not_recorded(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("puna.engine.executor._MAX_ROWS", 2)
    pair = Pair(tiny)
    for streams in (2, 3):
        for _ in range(4):
            pair.step(*range(streams))
    assert pair.proven == [2]
