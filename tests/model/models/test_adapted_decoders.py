"""Adapters of all weights they can change in each decoder, against merged weights."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from puna.gguf import GGMLType
from puna.model.adapters.adapters import Adapters
from puna.model.load import LoadedModel, load_model
from puna.options import AdapterFile, AdapterScale
from tests.engine.adapted import PROMPT, scores_of
from tests.engine.runs import Run
from tests.model.models.parity import original
from tests.model.models.test_decoders import MODELS
from tests.samples import sampled
from tests.tiny.adapters import adapter_writer

#: The others run in `make test-thorough`.
SAMPLE = ("gemma3n", "gemma4, layer inputs, shared keys", "deepseek2 V3", "qwen35moe", "falcon-h1", "rwkv7")
#: Weights without adapters: tables, convolutions, group norms, expansions of latents, transformed weights,
#: and linears of groups of heads.
FIXED = re.compile(
    r"((per_layer_)?token|position)_embd|blk\.\d+\.(ssm_(conv1d.*|norm)|attn_(k|v|kv)_b|attn_[qk]_norm|time_mix_(lerp_fused|v[12])"
    r"|altup_correct_coef)|altup_(unembd_)?proj"
    r"|blk\.\d+\.(hc_(attn|ffn)_fn|ple_conv1d)|output_hc_fn"
    r"|blk\.\d+\.(attn_output_a|(attn|indexer)_compressor_ape|ffn_gate_tid2eid)"
)
#: Layers that attend to another layer's keys have none of their own and ignore those in the file.
SHARING = {"gemma3n", "gemma3n, second of three streams", "gemma4, layer inputs, shared keys"}
SCALES = (0.0, 1.0, -0.5)


def scored(loaded: LoadedModel, *lora: list[AdapterScale] | None) -> list[np.ndarray]:
    """Return log-probabilities of the prompt by requests of one batch, one of them an embedding."""
    run = Run(loaded, batch_size=64)
    for number, each in enumerate(lora):
        run.submit(number, PROMPT, lora=each, prompt_logprobs=True, num_predict=4, ignore_eos=True)
    run.embed(len(lora), PROMPT, lora=lora[-1], pooling="mean")
    run.finish()
    assert run.rows[0] == (len(lora) + 1) * len(PROMPT), "they were not in one batch"
    return [scores_of(run, number) for number in range(len(lora))]


@pytest.mark.parametrize(
    "name",
    sampled(MODELS, SAMPLE),
    ids=lambda name: name.replace(" ", "-"),
)
def test_adapters_of_all_weights_equal_merged_weights(name: str, tmp_path: Path) -> None:
    config, dice = MODELS[name], np.random.default_rng(1)
    contents = config.contents(original(config))
    base = contents.write(tmp_path / "base.gguf")
    places = Adapters(load_model(base).model)._places  # type: ignore[arg-type]
    writer = adapter_writer(tmp_path / "a.gguf", contents.architecture, alpha=0.0)
    for tensor, weight in list(contents.tensors.items()):
        if weight.ndim < 2 or not tensor.endswith(".weight"):
            continue
        if FIXED.fullmatch(tensor.removesuffix(".weight")):
            continue
        if tensor not in places:
            assert name in SHARING
            assert re.search(r"attn_[kv]\.weight", tensor)
            continue
        *experts, rows, columns = weight.shape
        a = (dice.standard_normal((*experts, 3, columns)) / columns**0.5).astype(np.float32)
        b = (0.3 * dice.standard_normal((*experts, rows, 3))).astype(np.float32)
        writer.add_tensor(f"{tensor}.lora_a", a, GGMLType.F32)
        writer.add_tensor(f"{tensor}.lora_b", b, GGMLType.F32)
        contents.tensors[tensor] = weight + b @ a
    writer.write()
    ours = load_model(base, adapters=[AdapterFile(str(tmp_path / "a.gguf"))])
    lora = [[AdapterScale(0, scale=scale)] for scale in SCALES]
    plain, changed, other = scored(ours, *lora)
    (expected,) = scored(load_model(contents.write(tmp_path / "merged.gguf")), None)
    assert np.abs(changed - expected).max() < 1e-3
    assert np.abs(plain - scored(load_model(base), None)[0]).max() < 1e-3
    assert np.abs(changed - plain).max() > 0.05, "the adapter changes too little to be seen"
    # Torch's loops round a number by its place in a tensor.
    limit = 1e-5 if ours.ops.kernels.startswith("torch ") else 0
    for scale, together in zip(lora, (plain, changed, other), strict=True):
        assert np.abs(scored(ours, scale)[0] - together).max() <= limit
