"""Adapters against weights they are merged into, by transformers on tiny random models in float32."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.errors import ModelError, RequestError, UnsupportedModelError
from puna.gguf import GGMLType
from puna.model.adapters.peft import WEIGHTS
from puna.model.load import load_model
from puna.model.published import LINEARS
from puna.ops import Array, IndexBuffer, NumberBuffer
from puna.ops.recording import Recorded
from puna.ops.reference import Reference
from puna.options import AdapterFile, AdapterScale
from tests.engine.adapted import (
    MIXED,
    PROMPT,
    Tuned,
    check_alone,
    check_mixed,
    files_of,
    merging,
    scores_of,
    wanted,
)
from tests.engine.runs import Run
from tests.model.divisions import divided
from tests.model.models.parity import original, reference_log_probabilities
from tests.tiny.adapters import TinyAdapter, adapter_writer
from tests.tiny.decoders import PHI3, QWEN2, tiny_decoder_gguf
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

SPLIT = {**LINEARS, "lm_head": "output"}
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
FEED_FORWARD = ("gate_proj", "up_proj", "down_proj", "lm_head")


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    folder, model = tmp_path_factory.mktemp("qwen2"), original(QWEN2)
    first = TinyAdapter(ATTENTION, seed=1)
    second = TinyAdapter(FEED_FORWARD, rank=3, alpha=2.0, seed=2)
    files = files_of(
        first.write_gguf(folder / "a.gguf", "qwen2", model, SPLIT),
        second.write_gguf(folder / "b.gguf", "qwen2", model, SPLIT),
    )
    path = tiny_decoder_gguf(folder / "model.gguf", QWEN2, model=model)
    return load_model(path, adapters=files), merging(model, first, second)


@pytest.fixture(scope="module")
def phi3(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """Return a model whose queries, keys and values are rows of one tensor."""
    folder, model = tmp_path_factory.mktemp("phi3"), original(PHI3)
    first = TinyAdapter(("qkv_proj", "o_proj"), seed=3)
    second = TinyAdapter(("gate_up_proj", "down_proj"), rank=6, seed=4)
    names = {
        "qkv_proj": "attn_qkv",
        "o_proj": "attn_output",
        "gate_up_proj": "ffn_up",
        "down_proj": "ffn_down",
    }
    files = files_of(
        first.write_gguf(folder / "a.gguf", "phi3", model, names),
        second.write_gguf(folder / "b.gguf", "phi3", model, names),
    )
    path = tiny_decoder_gguf(folder / "model.gguf", PHI3, model=model)
    return load_model(path, adapters=files), merging(model, first, second)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """Return a model with adapters saved by PEFT, and queries and keys ordered unlike transformers'."""
    folder, config = tmp_path_factory.mktemp("llama"), TinyLlama()
    model = config.build()
    first, second = TinyAdapter(ATTENTION, seed=5), TinyAdapter(FEED_FORWARD, rank=2, alpha=3.0, seed=6)
    rooted = TinyAdapter(second.modules, second.rank, second.alpha / 2**0.5, second.seed)
    files = files_of(
        first.write_peft(folder / "a", model), rooted.write_peft(folder / "b", model, use_rslora=True)
    )
    path = tiny_llama_gguf(folder / "model.gguf", config, model=model)
    return load_model(path, adapters=files), merging(model, first, second)


class Again:
    """A recorder whose programs make the same computation again, from its inputs alone."""

    def record(self, compute: Callable[..., Array], inputs: Sequence[IndexBuffer | NumberBuffer]) -> Recorded:
        self.result = compute(*(buffer.array for buffer in inputs))
        self._compute = lambda: compute(*(buffer.array for buffer in inputs))
        return Recorded(self.result, copy.copy(self))

    def run(self) -> None:
        self.result[...] = self._compute()

    def spoil(self) -> None:
        self.result.fill(np.nan)


class Recording(Reference):
    """A backend that records."""

    def recorder(self) -> Again:  # type: ignore[override]
        return Again()


def test_decode_steps_with_adapters_are_replayed(tmp_path: Path) -> None:
    """Rows change their adapters between steps of one program, and other rows have none."""
    model, first = original(QWEN2), TinyAdapter((*ATTENTION, *FEED_FORWARD), seed=1)
    file = AdapterFile(str(first.write_gguf(tmp_path / "a.gguf", "qwen2", model, SPLIT)))
    path = tiny_decoder_gguf(tmp_path / "model.gguf", QWEN2, model=model)
    plain, *replayed = (
        Run(loaded)
        for loaded in (
            load_model(path, adapters=[file], ops=Reference()),
            load_model(path, adapters=[file], ops=Recording()),
            divided(path, [1], [Recording(), Recording()], adapters=[file]),
        )
    )
    for run in (plain, *replayed):
        for number, scale in enumerate((0.0, 1.0, -0.5, 1.0, 0.0)):
            settings = {"num_predict": 6 + number, "temperature": 0, "ignore_eos": True}
            run.submit(number, PROMPT[number:], lora=[AdapterScale(0, scale=scale)], **settings)
        run.finish()
    for run in replayed:
        steps = run.engine._executor._replay._steps
        assert {kind for kind, step in steps.items() if step.proven} >= {(4, True), (1, False)}
        assert [run.tokens(number) for number in range(5)] == [plain.tokens(number) for number in range(5)]


def test_steps_without_adapters_are_replayed_where_those_with_adapters_cannot_be(qwen2: Tuned) -> None:
    if qwen2[0].ops.recorder() is None:
        pytest.skip("the backend records no steps")
    run = Run(qwen2[0])
    for number, uses in enumerate([(("first", 1.0),), ()]):
        run.submit(number, PROMPT, lora=wanted(uses), num_predict=8, temperature=0, ignore_eos=True)
        run.finish()
    steps = run.engine._executor._replay._steps
    assert [(kind.rows, kind.adapted, step.proven) for kind, step in steps.items()] == [(1, False, True)]


@pytest.mark.parametrize("kind", ["qwen2", "phi3", "llama"])
def test_each_row_of_a_batch_is_computed_with_its_own_adapters(
    kind: str, request: pytest.FixtureRequest
) -> None:
    check_mixed(request.getfixturevalue(kind))


def test_a_prefix_is_shared_only_between_requests_with_the_same_adapters(qwen2: Tuned) -> None:
    ours, _ = qwen2
    run, cached = Run(ours), []
    for number, uses in enumerate([*MIXED, *MIXED, (("first", 0.9),)]):
        run.submit(number, PROMPT, lora=wanted(uses), num_predict=1)
        run.finish()
        cached.append(run.done(number).cached)
    assert cached == [0] * len(MIXED) + [len(PROMPT) - 1] * len(MIXED) + [0]


def test_adapters_given_at_loading_apply_by_default(tmp_path: Path, qwen2: Tuned) -> None:
    _, merged = qwen2
    model, first = original(QWEN2), TinyAdapter(ATTENTION, seed=1)
    path = first.write_gguf(tmp_path / "a.gguf", "qwen2", model, SPLIT)
    file = AdapterFile(str(path), scale=0.5)
    ours = load_model(tiny_decoder_gguf(tmp_path / "model.gguf", QWEN2, model=model), adapters=[file])
    run = Run(ours)
    for number, (lora, uses) in enumerate(((None, (("first", 0.5),)), ([], ()), ([AdapterScale(0)], None))):
        run.submit(number, PROMPT, prompt_logprobs=True, num_predict=0, lora=lora)
        run.finish()
        expected = reference_log_probabilities(merged((("first", 1.0),) if uses is None else uses), PROMPT)
        following = expected[:-1].gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]
        assert np.abs(scores_of(run, number) - following.numpy()).max() < 1e-3


def test_embeddings_equal_those_of_merged_weights(qwen2: Tuned) -> None:
    ours, merged = qwen2
    run = Run(ours, batch_size=64)
    for number, uses in enumerate(MIXED):
        run.embed(number, PROMPT, lora=wanted(uses), pooling="mean")
    run.finish()
    for number, uses in enumerate(MIXED):
        with torch.inference_mode():
            states = merged(uses).model(torch.tensor([PROMPT])).last_hidden_state[0].mean(0)
        expected = torch.nn.functional.normalize(states, dim=0).numpy()
        assert np.abs(run.vectors(number)[0] - expected).max() < 1e-4


def test_embeddings_and_prompts_share_a_pass_where_adapters_change_the_output(
    tmp_path: Path,
) -> None:
    model, first = original(QWEN2), TinyAdapter((*ATTENTION, *FEED_FORWARD), seed=1)
    path = first.write_gguf(tmp_path / "first.gguf", "qwen2", model, SPLIT)
    base = tiny_decoder_gguf(tmp_path / "model.gguf", QWEN2, model=model)
    ours = load_model(base, adapters=[AdapterFile(str(path), "first")])
    settings = {"num_predict": 4, "temperature": 0, "ignore_eos": True}
    together, alone = Run(ours, batch_size=64), Run(ours, batch_size=64)
    for number, scale in enumerate((1.0, 0.0)):
        together.submit(number, PROMPT, lora=[AdapterScale(0, scale=scale)], **settings)
    together.embed(2, PROMPT, lora=[AdapterScale(0, scale=-0.5)], pooling="mean")
    together.finish()
    assert together.rows == [3 * len(PROMPT), 2, 2, 2], "a pass failed, and each request had one of its own"
    for number, scale in enumerate((1.0, 0.0)):
        alone.submit(number, PROMPT, lora=[AdapterScale(0, scale=scale)], **settings)
        alone.finish()
        assert together.tokens(number) == alone.tokens(number)
    assert together.tokens(0) != together.tokens(1)


def test_quantised_weights_take_adapters_and_streams_match_runs_alone(tmp_path: Path) -> None:
    model, first = original(QWEN2), TinyAdapter((*ATTENTION, *FEED_FORWARD[:3]), seed=7)
    path = first.write_gguf(tmp_path / "a.gguf", "qwen2", model, SPLIT)
    base = tiny_decoder_gguf(tmp_path / "model.gguf", QWEN2, model=model, matrices=GGMLType.Q8_0)
    ours = load_model(base, adapters=[AdapterFile(str(path))])
    check_alone(ours, 20)


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ([AdapterScale(2)], r"no adapter with the id 2; the model has 2 \(first, second\)"),
        ([AdapterScale(-1)], "no adapter with the id -1"),
        ([AdapterScale()], "no adapter with the id None"),
        ([AdapterScale(name="third")], "no adapter 'third'; the model has first, second"),
        ([AdapterScale(0), AdapterScale(name="first")], "'first' is named twice"),
        ([AdapterScale(0, scale=float("nan"))], "the scale nan is not between"),
        ([AdapterScale(0, scale=1e9)], "the scale 1000000000.0 is not between"),
    ],
    ids=str,
)
def test_unknown_adapters_are_refused(qwen2: Tuned, lora: list[AdapterScale], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Run(qwen2[0]).submit(0, PROMPT, lora=lora)


def test_a_model_without_adapters_refuses_requests_for_them(tmp_path: Path) -> None:
    ours = load_model(tiny_decoder_gguf(tmp_path / "m.gguf", QWEN2, model=original(QWEN2)))
    with pytest.raises(RequestError, match="lora: the model has no adapters"):
        Run(ours).submit(0, PROMPT, lora=[AdapterScale(0)])
    Run(ours).submit(0, PROMPT, lora=[])


def _bad(path: Path, tensors: dict[str, tuple[int, ...]], **header: Any) -> Path:
    writer = adapter_writer(path, **{"architecture": "qwen2", **header})
    for name, shape in tensors.items():
        writer.add_tensor(name, np.full(shape, 100, np.float32), GGMLType.F32)
    writer.write()
    return path


Q, K = "blk.0.attn_q.weight", "blk.0.attn_k.weight"


@pytest.mark.parametrize(
    ("tensors", "header", "message"),
    [
        ({f"{Q}.lora_a": (4, 64)}, {}, rf"tensor '{Q}.lora_b' is missing beside '{Q}.lora_a'"),
        ({f"{Q}.lora_b": (64, 4)}, {}, rf"tensor '{Q}.lora_a' is missing"),
        ({f"{Q}.lora_a": (4, 64), f"{Q}.lora_b": (64, 5)}, {}, "the rank is 4 here and 5 there"),
        ({f"{K}.lora_a": (4, 64), f"{K}.lora_b": (64, 4)}, {}, r"should be \[rank, 64\] and \[32, rank\]"),
        ({f"{Q}.lora_a": (4, 48), f"{Q}.lora_b": (64, 4)}, {}, r"beside a weight of \[64, 64\]"),
        ({"blk.9.attn_q.weight.lora_a": (4, 64), "blk.9.attn_q.weight.lora_b": (64, 4)}, {}, "which the"),
        ({"token_embd.weight.lora_a": (4, 64), "token_embd.weight.lora_b": (300, 4)}, {}, "token_embd"),
        ({"blk.0.attn_q.bias": (64,)}, {}, "'blk.0.attn_q.bias' is not part of a low-rank adapter"),
        ({}, {}, "this adapter has no tensors"),
        ({}, {"architecture": "llama"}, "this adapter is for 'llama', and the model is 'qwen2'"),
        ({}, {"kind": "model"}, "of type 'model', not an adapter"),
        ({f"{Q}.lora_a": (4, 64), f"{Q}.lora_b": (64, 4)}, {"alpha": 3e38}, "alpha makes the values of"),
        ({f"{Q}.lora_a": (4, 64), f"{Q}.lora_b": (64, 4)}, {"alpha": 1e15}, "larger than 1e\\+15"),
    ],
)  # fmt: skip
def test_adapters_that_do_not_fit_are_refused(
    tmp_path: Path, tensors: dict[str, tuple[int, ...]], header: dict[str, Any], message: str
) -> None:
    path = tiny_decoder_gguf(tmp_path / "m.gguf", QWEN2, model=original(QWEN2))
    bad = _bad(tmp_path / "bad.gguf", tensors, **header)
    with pytest.raises(ModelError, match=r"bad\.gguf: .*" + message):
        load_model(path, adapters=[AdapterFile(str(bad))])


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e16, -3e38])
def test_values_that_would_spoil_other_rows_are_refused(tmp_path: Path, value: float) -> None:
    path = tiny_decoder_gguf(tmp_path / "m.gguf", QWEN2, model=original(QWEN2))
    writer = adapter_writer(tmp_path / "bad.gguf", "qwen2", alpha=0.0)
    for name, shape in ((f"{Q}.lora_a", (4, 64)), (f"{Q}.lora_b", (64, 4))):
        values = np.ones(shape, np.float32)
        values[1, 3] = value
        writer.add_tensor(name, values, GGMLType.F32)
    writer.write()
    with pytest.raises(
        ModelError, match=rf"'{Q}\.lora_[ab]' has values that are not finite, or beyond 1e\+15"
    ):
        load_model(path, adapters=[AdapterFile(str(tmp_path / "bad.gguf"))])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_dora": True}, "'use_dora' is not supported"),
        ({"bias": "all"}, "'bias' is 'all'"),
        ({"peft_type": "IA3"}, "an adapter of type 'IA3'"),
        ({"r": "many"}, "not an adapter's settings"),
        ({"alpha_pattern": {str(number): 1 for number in range(100_000)}}, "bytes; at most"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_unknown_peft_settings_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    model = original(QWEN2)
    path = tiny_decoder_gguf(tmp_path / "m.gguf", QWEN2, model=model)
    folder = TinyAdapter(("q_proj",)).write_peft(tmp_path / "bad", model, **settings)
    with pytest.raises(ModelError, match=rf"bad/adapter_config\.json: .*{message}"):
        load_model(path, adapters=[AdapterFile(str(folder))])


def test_tower_weights_of_an_adapter_can_be_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import load_file, save_file

    model = original(QWEN2)
    path = tiny_decoder_gguf(tmp_path / "m.gguf", QWEN2, model=model)
    text = TinyAdapter(("q_proj",))
    plain, seeing = text.write_peft(tmp_path / "plain", model), text.write_peft(tmp_path / "seeing", model)
    tower = "base_model.model.model.visual.blocks.0.attn.qkv.lora_A.weight"
    save_file(load_file(seeing / WEIGHTS) | {tower: torch.ones(4, 4)}, seeing / WEIGHTS)
    written = text.write_gguf(tmp_path / "plain.gguf", "qwen2", model, SPLIT)
    bad = _bad(
        tmp_path / "bad.gguf", {f"v.{Q}.lora_a": (4, 64), f"{Q}.lora_a": (4, 64), f"{Q}.lora_b": (64, 4)}
    )
    for file, name in ((seeing, "model.visual.blocks.0.attn.qkv"), (bad, f"v.{Q}")):
        with pytest.raises(UnsupportedModelError, match=f"{name}.*PUNA_ADAPTERS_TEXT_ONLY=1"):
            load_model(path, adapters=[AdapterFile(str(file))])
    monkeypatch.setenv("PUNA_ADAPTERS_TEXT_ONLY", "1")
    found = []
    for file in (plain, seeing, written):
        run = Run(load_model(path, adapters=[AdapterFile(str(file))]))
        run.submit(0, PROMPT, prompt_logprobs=True, num_predict=0)
        run.finish()
        found.append(scores_of(run, 0))
    assert (found[0] == found[1]).all()
    assert np.abs(found[0] - found[2]).max() < 1e-5
    load_model(path, adapters=[AdapterFile(str(bad))])


def test_unknown_peft_modules_are_named(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tiny_decoder_gguf(tmp_path / "m.gguf", QWEN2, model=original(QWEN2))
    folder = TinyAdapter(("q_proj",)).write_peft(tmp_path / "bad", original(QWEN2))
    name = "base_model.model.model.embed_tokens.lora_embedding_A"
    save_file({name: torch.ones(4, 4)}, folder / "adapter_model.safetensors")
    with pytest.raises(UnsupportedModelError, match="embed_tokens"):
        load_model(path, adapters=[AdapterFile(str(folder))])
    for module in (
        "model.layers.0.mlp.experts.3.gate_proj", "vision_tower.encoder.layers.0.self_attn.q_proj",
        "model.visual.blocks.0.attn.qkv", "model.layers.0.linear_attn.out_proj",
    ):  # fmt: skip
        save_file({f"base_model.model.{module}.lora_A.weight": torch.ones(4, 4)}, folder / WEIGHTS)
        with pytest.raises(UnsupportedModelError, match=f"{module}.* cannot change here"):
            load_model(path, adapters=[AdapterFile(str(folder))])
    (folder / "adapter_model.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(ModelError, match="not a safetensors file"):
        load_model(path, adapters=[AdapterFile(str(folder))])
