"""Adapters of experts against weights they are merged into, by transformers on tiny random models."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from puna.errors import InsufficientMemoryError, ModelError
from puna.gguf import GGMLType, open_gguf
from puna.model.adapters.peft import WEIGHTS
from puna.model.load import load_model
from puna.model.memory import Forecast
from puna.model.published import LINEARS
from puna.options import AdapterFile
from tests.engine.adapted import PROMPT, Tuned, check_alone, check_mixed, files_of, merging, scores_of
from tests.engine.runs import Run
from tests.model.models.parity import original, reference_log_probabilities
from tests.tiny.adapters import MIXTRAL as MIXTRAL_NAMES
from tests.tiny.adapters import TinyAdapter, adapter_writer, expert_weights
from tests.tiny.decoders import GPT_OSS, QWEN3_MOE, tiny_decoder_gguf
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

#: Experts whose gates and ups are one parameter, with alternating rows or one after the other.
DECODERS = {"qwen3moe": QWEN3_MOE, "gpt-oss": GPT_OSS}
MIXTRAL = TinyLlama(experts=4, experts_used=2)

FIRST = TinyAdapter(("q_proj",), seed=1, experts=("gate", "up", "down"))
SECOND = TinyAdapter(("mlp.gate",), rank=3, alpha=2.0, seed=2, experts=("down",))


def decoder(folder: Path, architecture: str) -> Tuned:
    config = DECODERS[architecture]
    model = original(config)
    files = files_of(
        FIRST.write_gguf(folder / "a.gguf", architecture, model, LINEARS),
        SECOND.write_gguf(folder / "b.gguf", architecture, model, LINEARS),
    )
    path = tiny_decoder_gguf(folder / "model.gguf", config, model=model)
    return load_model(path, adapters=files), merging(model, FIRST, SECOND)


@pytest.mark.parametrize("architecture", DECODERS)
def test_each_row_of_a_batch_passes_through_experts_with_its_own_adapters(
    tmp_path: Path, architecture: str
) -> None:
    check_mixed(decoder(tmp_path, architecture))


def test_adapters_of_peft_name_each_expert(tmp_path: Path) -> None:
    """Mixtral, whose files order queries differently; experts may lack an adapter or differ in rank."""
    model = MIXTRAL.build()
    files = files_of(
        FIRST.write_peft(tmp_path / "a", model, projections=MIXTRAL_NAMES),
        SECOND.write_peft(tmp_path / "b", model),
    )
    path = tiny_llama_gguf(tmp_path / "model.gguf", MIXTRAL, model=model)
    check_mixed((load_model(path, adapters=files), merging(model, FIRST, SECOND)))


@pytest.mark.parametrize("swapped", [False, True], ids=["as it is", "swapped"])
@pytest.mark.parametrize("architecture", DECODERS)
def test_adapters_of_peft_name_the_parameters_of_all_experts(
    tmp_path: Path, architecture: str, swapped: bool
) -> None:
    config = DECODERS[architecture]
    model = original(config)
    files = files_of(
        FIRST.write_fused(tmp_path / "a", model, swapped=swapped),
        SECOND.write_gguf(tmp_path / "b.gguf", architecture, model, LINEARS),
    )
    path = tiny_decoder_gguf(tmp_path / "model.gguf", config, model=model)
    check_mixed((load_model(path, adapters=files), merging(model, FIRST, SECOND)))


def test_parameters_that_do_not_fit_the_experts_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = original(QWEN3_MOE)  # 8 experts of 32 in a hidden size of 64: gate and up have two sides of 64
    base = tiny_decoder_gguf(tmp_path / "model.gguf", QWEN3_MOE, model=model)
    folder = TinyAdapter(("q_proj",)).write_peft(tmp_path / "bad", model)
    for shapes, message in (
        (((16, 64), (64, 16)), "do not tell which side"),
        (((16, 64), (33, 16)), "do not fit the model's"),
        (((15, 64), (64, 15)), "do not fit the model's"),
        (((16, 32),), "only one of 'lora_A' and 'lora_B'"),
    ):
        name = "base_model.model.model.layers.0.mlp.experts.lora_{}.weight"
        save_file(
            {name.format(half): torch.ones(shape) for half, shape in zip("AB", shapes, strict=False)},
            folder / WEIGHTS,
        )
        with pytest.raises(ModelError, match=message):
            load_model(base, adapters=[AdapterFile(str(folder))])


def test_experts_without_a_part_of_an_adapter_are_unchanged(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model, adapter = original(QWEN3_MOE), TinyAdapter((), experts=("gate", "up", "down"), seed=3)
    folder = adapter.write_peft(tmp_path / "a", model, alpha_pattern={"experts.5.up_proj": 3.0})
    base = tiny_decoder_gguf(tmp_path / "model.gguf", QWEN3_MOE, model=model)
    tensors, changed = load_file(folder / WEIGHTS), original(QWEN3_MOE)
    changed = copy.deepcopy(changed)
    for name in [name for name in tensors if ".experts.2." in name]:
        del tensors[name]
    half = "base_model.model.model.layers.1.mlp.experts.6.down_proj.lora_"
    tensors[f"{half}A.weight"], tensors[f"{half}B.weight"] = torch.ones(1, 32) / 6, torch.ones(64, 1) / 6
    save_file(tensors, folder / WEIGHTS)
    modules = dict(changed.named_modules())
    for name in [name for name in tensors if ".lora_A." in name]:
        *module, expert, linear = name.removeprefix("base_model.model.").split(".lora_A")[0].split(".")
        a, b = tensors[name], tensors[name.replace("lora_A", "lora_B")]
        alpha = 3.0 if (expert, linear) == ("5", "up_proj") else adapter.alpha
        weights = expert_weights(modules[".".join(module)], linear.removesuffix("_proj"))
        weights[int(expert)] += alpha / len(a) * b @ a
    run = Run(load_model(base, adapters=[AdapterFile(str(folder))]))
    run.submit(0, PROMPT, prompt_logprobs=True, num_predict=0)
    run.finish()
    expected = reference_log_probabilities(changed, PROMPT)
    following = expected[:-1].gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]
    assert scores_of(run, 0) == pytest.approx(following.numpy(), abs=1e-3)


def test_memory_is_counted_where_the_file_changes_few_experts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import save_file

    path = tiny_llama_gguf(tmp_path / "model.gguf", MIXTRAL, model=MIXTRAL.build())
    folder = FIRST.write_peft(tmp_path / "a", MIXTRAL.build())
    module = "base_model.model.model.layers.0.mlp.experts.1.up_proj"
    halves = {"A": torch.ones(64, MIXTRAL.hidden), "B": torch.ones(MIXTRAL.feed_forward, 64)}
    save_file({f"{module}.lora_{half}.weight": values for half, values in halves.items()}, folder / WEIGHTS)
    files = [AdapterFile(str(folder))]
    with open_gguf(path) as file:
        needs = Forecast(file).table(context=0, parallel=1, batch=512).host
    assert load_model(path, adapters=files).adapters
    with monkeypatch.context() as patch:
        patch.setattr("puna.machine.available_memory", lambda: 0)
        with pytest.raises(InsufficientMemoryError, match="beside the adapters' 0"):
            load_model(path, adapters=files)
    in_file = (folder / WEIGHTS).stat().st_size
    for place, without in (("machine", needs + 2 * in_file), ("model.adapters.pairs", 3 * in_file)):
        with monkeypatch.context() as patch:
            patch.setattr(f"puna.{place}.available_memory", lambda without=without: without)
            with pytest.raises(InsufficientMemoryError):
                load_model(path, adapters=files)


def test_quantised_experts_take_adapters_and_streams_match_runs_alone(tmp_path: Path) -> None:
    model = original(QWEN3_MOE)
    path = FIRST.write_gguf(tmp_path / "a.gguf", "qwen3moe", model, LINEARS)
    base = tiny_decoder_gguf(tmp_path / "model.gguf", QWEN3_MOE, model=model, matrices=GGMLType.Q8_0)
    ours = load_model(base, adapters=[AdapterFile(str(path))])
    check_alone(ours, 12)


def test_a_joint_adapter_of_gate_and_up_equals_separate_ones(tmp_path: Path) -> None:
    """The model has experts that llama.cpp's converter fused into one tensor."""
    model, parts = original(QWEN3_MOE), TinyAdapter((), experts=("gate", "up"))
    base = tiny_decoder_gguf(tmp_path / "model.gguf", QWEN3_MOE, model=model)
    apart = parts.write_gguf(tmp_path / "apart.gguf", "qwen3moe", model, LINEARS)
    joined = adapter_writer(tmp_path / "joined.gguf", "qwen3moe", 2 * parts.alpha)  # with twice the rank
    pairs = parts.expert_halves(model)
    for layer in range(2):
        (a, b), (c, d) = (pairs[f"model.layers.{layer}.mlp.experts", part] for part in ("gate", "up"))
        rows = torch.cat([torch.cat([b, 0 * b], 2), torch.cat([0 * d, d], 2)], 1)
        joined.add_tensor(f"blk.{layer}.ffn_gate_up_exps.weight.lora_a", torch.cat([a, c], 1).numpy())
        joined.add_tensor(f"blk.{layer}.ffn_gate_up_exps.weight.lora_b", rows.numpy())
    joined.write()
    found = []
    for path in (apart, tmp_path / "joined.gguf"):
        run = Run(load_model(base, adapters=[AdapterFile(str(path))]))
        run.submit(0, PROMPT, prompt_logprobs=True, num_predict=0)
        run.finish()
        found.append([score for _, score in run.scored(0)[1:]])
    assert found[0] == pytest.approx(found[1], abs=1e-4)


def test_adapters_that_do_not_fit_the_experts_are_refused(tmp_path: Path) -> None:
    model = original(QWEN3_MOE)
    base = tiny_decoder_gguf(tmp_path / "model.gguf", QWEN3_MOE, model=model)
    for shapes, message in (
        (((7, 4, 64), (7, 32, 4)), r"beside a weight of \[8, 32, 64\] they should be \[8, rank, 64\]"),
        (((4, 64), (32, 4)), r"they should be \[8, rank, 64\] and \[8, 32, rank\]"),
        (((8, 4, 64), (8, 4, 32)), "the rank is 4 here and 32 there"),
        (((8, 4, 64), (8, 33, 4)), r"\[8, 32, rank\]"),
    ):
        writer = adapter_writer(tmp_path / "bad.gguf", "qwen3moe")
        for half, shape in zip("ab", shapes, strict=True):
            writer.add_tensor(f"blk.0.ffn_up_exps.weight.lora_{half}", np.ones(shape, np.float32))
        writer.write()
        with pytest.raises(ModelError, match=r"bad\.gguf: .*" + message):
            load_model(base, adapters=[AdapterFile(str(tmp_path / "bad.gguf"))])
