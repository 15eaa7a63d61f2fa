"""Adapters of linears whose rows are not those of the pass: T5's prompts, Llama 3.2 Vision's images."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from puna.gguf import GGMLType
from puna.model.load import load_model
from puna.options import AdapterFile
from tests.model.models.images import Part, Text, batch_of, log_probabilities, reference_log_probabilities
from tests.model.models.parity import FLOATS, check_close, original, random_tokens
from tests.model.models.test_t5 import expected, read
from tests.tiny.adapters import TinyAdapter, adapter_writer
from tests.tiny.mllama import TinyMllama, tiny_mllama_gguf
from tests.tiny.t5 import TinyT5, tiny_t5_gguf

#: Linears of T5, by the ends of their modules' names.
T5 = {
    **{f"SelfAttention.{part}": f"attn_{part}" for part in "qkvo"},
    **{f"EncDecAttention.{part}": f"cross_attn_{part}" for part in "qkvo"},
    "DenseReluDense.wi_0": "ffn_gate", "DenseReluDense.wi_1": "ffn_up", "DenseReluDense.wo": "ffn_down",
}  # fmt: skip
MLLAMA = {
    **{f"cross_attn.{part}_proj": f"cross_attn_{part}_proj" for part in "qkvo"},
    "self_attn.v_proj": "attn_v", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def t5_adapter(path: Path, adapter: TinyAdapter, model: Any) -> Path:
    writer = adapter_writer(path, "t5", adapter.alpha)
    for name, (a, b) in adapter.halves(model).items():
        stack, layer, module = re.fullmatch(r"(..).*coder\.block\.(\d)\.layer\.\d\.(.*)", name).groups()
        tensor = f"{stack}c.blk.{layer}.{T5[module]}.weight"
        writer.add_tensor(f"{tensor}.lora_a", a.numpy(), GGMLType.F32)
        writer.add_tensor(f"{tensor}.lora_b", b.numpy(), GGMLType.F32)
    writer.write()
    return path


@pytest.mark.parametrize("form", ["gguf", "peft"])
def test_the_encoder_reads_prompts_with_the_adapters_of_their_answers(tmp_path: Path, form: str) -> None:
    config, adapter = TinyT5(seed=1, start=3), TinyAdapter(tuple(T5), seed=4)
    model = original(config)
    if form == "peft":
        file = adapter.write_peft(tmp_path / "a", model)
    else:
        file = t5_adapter(tmp_path / "a.gguf", adapter, model)
    path = tiny_t5_gguf(tmp_path / "model.gguf", config, model=model)
    ours = load_model(path, adapters=[AdapterFile(str(file))])
    parts, scales = [], [0.0, 1.0, -0.5]
    for sequence in range(3):
        source = random_tokens(ours, (9, 30, 17)[sequence], sequence)
        parts.append((sequence, source, [config.start, *random_tokens(ours, 12, sequence + 5)]))
    rows = np.repeat(np.array(scales, np.float32), 13)
    ours.model.row_scales.begin({0: rows}, np.arange(len(rows)))
    found = read(ours, ours.make_cache(sequences=3, context=64, types=FLOATS), parts)
    results = [
        expected(adapter.merged(model, scale), *part[1:]) for scale, part in zip(scales, parts, strict=True)
    ]
    for got, theirs in zip(found, results, strict=True):
        check_close(ours, got, theirs)
    plain = expected(model, *parts[1][1:])
    assert (plain - results[1]).abs().max() > 0.05, "the adapter changes too little to be seen"


@pytest.mark.parametrize(("cross_layers", "form"), [((1, 3), "gguf"), ((1, 2), "gguf"), ((1, 3), "peft")])
def test_cross_attention_to_images_uses_the_texts_adapters(
    tmp_path: Path, cross_layers: tuple[int, ...], form: str
) -> None:
    config, modules = TinyMllama(cross_layers=cross_layers), tuple(MLLAMA)
    model = original(config)
    if form == "peft":  # PEFT orders queries and keys differently from files
        adapter = TinyAdapter((*modules, "self_attn.q_proj", "self_attn.k_proj"), seed=5)
        adapter_path = adapter.write_peft(tmp_path / "a", model)
    else:
        adapter = TinyAdapter(modules, seed=5)
        adapter_path = adapter.write_gguf(tmp_path / "a.gguf", "mllama", model, MLLAMA)
    path = tiny_mllama_gguf(tmp_path / "model.gguf", config, model=model)
    ours = load_model(path, adapters=[AdapterFile(str(adapter_path))])
    texts = [
        Text.random(40, places, hidden=config.hidden, seed=n)
        for n, places in enumerate(({4: 3, 21: 9}, {11: 10}, {}, {6: 5, 7: 2}))
    ]
    scales = np.array([1.0, 0.0, 1.0, -0.5], np.float32)
    batch = batch_of([Part(sequence, text, 0, 40) for sequence, text in enumerate(texts)])
    batch.outputs = np.array([3, 30, 50, 79, 90, 119, 130, 159], np.int64)  # two of each text
    ours.model.row_scales.begin({0: np.repeat(scales, 40)}, batch.outputs)
    found = log_probabilities(ours, ours.make_cache(sequences=4, context=128, types=FLOATS), batch)
    for n, (text, scale) in enumerate(zip(texts, scales, strict=True)):
        theirs = reference_log_probabilities(adapter.merged(model, float(scale)), text)
        own = batch.outputs[2 * n : 2 * n + 2] % 40
        check_close(ours, torch.as_tensor(found[2 * n : 2 * n + 2]), theirs[own])
