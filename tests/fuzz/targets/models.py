"""Models with tampered metadata, tensors or bytes: loaded and run."""

from __future__ import annotations

import functools
import os
import random
from pathlib import Path

import numpy as np

import puna
from puna.gguf import GGMLType, open_gguf
from puna.kvcache.types import F16_TYPES
from puna.model.llamacpp.memory import LlamaCppForecast
from puna.options import Placement
from tests.fuzz.case import Bounds
from tests.fuzz.invented import OWN, TRANSCRIBING, Model, invented
from tests.fuzz.tampering import encoded_at_times_damaged, tamper
from tests.gguf import gguf_bytes as raw

BOUNDS = Bounds(seconds=5.0, memory=128 << 20)

_KINDS = (GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q4_0)

#: Keys that some architectures have, keys that no invented model has, and keys of every file.
_OF_ARCHITECTURES = (
    *dict.fromkeys(key for own in (OWN | TRANSCRIBING).values() for key in own),
    "nextn_predict_layers", "attention.recurrent_layers", "attention.layer_norm_epsilon",
    "attention.compress_rope_freq_base", "attention.indexer.kpool_select_tail", "kda.safe_gate",
    "hyper_connection.epsilon", "hyper_connection.magnitude", "ple.image_token_id", "rope.freq_base_swa",
    "rope.dimension_count_swa", "expert_weights_scale", "expert_weights_norm", "ssm.v_head_reordered",
    "pooling_type", "attention.causal", "use_qk_norm",
)  # fmt: skip
_OF_TOKENIZERS = (
    "pre", "scores", "merges", "token_type", "bos_token_id", "eos_token_id", "eos_token_ids", "eot_token_id",
    "unknown_token_id", "add_bos_token", "add_space_prefix", "normalizer.lowercase", "model",
)  # fmt: skip
_GENERAL = ("general.type", "general.name", "general.alignment", "split.count", "general.file_type")
_KEYS = (*_OF_ARCHITECTURES, *(f"tokenizer.ggml.{key}" for key in _OF_TOKENIZERS), *_GENERAL)
_TENSORS = ("rope_freqs", "rope_factors_long", "rope_factors_short")

_known = functools.cache(invented)


def fuzz(dice: random.Random, folder: Path) -> None:
    model = _any(dice)
    tamper(dice, model, model.keys["general.architecture"], _KEYS, _TENSORS)
    path = raw.save(folder, encoded_at_times_damaged(dice, model))
    if dice.random() < 0.1:  # llama.cpp's memory needs are predicted from the same metadata
        with open_gguf(path) as file:
            LlamaCppForecast(file, F16_TYPES, Placement(num_gpu=0)).table(context=4096, parallel=2, batch=512)
        return
    os.environ["PUNA_OPS"] = "reference"
    sizes = {"num_ctx": dice.choice((1, 16, 64, 2**20)), "parallel": dice.choice((1, 2))}
    with puna.load(path, **sizes) as loaded:
        if loaded.engine.loaded.speech_encoder is not None:
            loaded.transcribe(np.zeros(4000), word_timestamps=dice.random() < 0.5)
        elif loaded.engine.loaded.generates:
            loaded.chat([{"role": "user", "content": "once upon"}], seed=1, num_predict=3)
            loaded.generate("once upon a time", seed=1, num_predict=3)
        else:
            loaded.embed("once upon a time")


def _any(dice: random.Random) -> Model:
    """Return a copy of a model of random architecture, type and tokenizer."""
    known = _known(
        dice.choice(sorted(OWN | TRANSCRIBING)), dice.choice(_KINDS), dice.choice(("gpt2", "gpt2", "llama"))
    )
    return known.copy()
