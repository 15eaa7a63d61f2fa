"""Embeddings of Jina: the second, which attend less to what is further away, and the third, with rotation.

The first rerankers are built like the second embeddings, the second ones are XLM-RoBERTa's kind (`bert.py`).
The third are published with adapters for their tasks in the same tensors, [tasks, ...], which in files are
adapters of their own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Final

from puna.convert.config import Config
from puna.convert.families.bert import (
    ASSUMED,
    DROPPED,
    HARMLESS,
    KEYS,
    NAMES,
    POOLER,
    ROBERTA_KEYS,
    ROTATED,
    ROTATED_ASSUMED,
    ROTATED_HARMLESS,
    inner,
)
from puna.convert.family import PLAIN, Assumption, Change, Family, Place, Split, halves
from puna.convert.numbers import Values
from puna.errors import ConversionError, shown

_FEED_FORWARD: Final = {
    "mlp.gated_layers": "ffn_up", "mlp.wo": "ffn_down", "mlp.layernorm": "layer_output_norm",
    # Of the models for code.
    "attention.self.layer_norm_q": "attn_q_norm", "attention.self.layer_norm_k": "attn_k_norm",
    "layer_norm_1": "attn_norm_2", "layer_norm_2": "layer_output_norm", "mlp.down_layer": "ffn_down",
}  # fmt: skip
_NAMES: Final[dict[str, Place]] = {
    **NAMES,
    **{f"encoder.layer.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _FEED_FORWARD.items()},
    # Ups come first, unlike in `gated_layers`: two tensors leave no doubt which are which.
    "encoder.layer.{}.mlp.up_gated_layer": Split(("blk.{}.ffn_up", "blk.{}.ffn_gate"), halves),
}


def _is_second(config: Config) -> bool:
    return config.get("position_embedding_type") == "alibi" and config.get("feed_forward_type") in (
        None, "original", "geglu",
    )  # fmt: skip


#: What `rename` calls tensors of another file.
_ELSEWHERE: Final = "elsewhere"
_ADAPTED: Final = re.compile(r"(.*)\.parametrizations\.weight\.(?:(original)|0\.lora_([AB]))")
_MAX_TASKS: Final = 64
_TASK: Final = re.compile(r"\w[\w.-]{0,63}", re.ASCII)


def _tasks(config: Config) -> list[str]:
    """The names of the adapters. Raises ConversionError."""
    given = config.get("lora_adaptations") or []
    fine = isinstance(given, list) and all(isinstance(name, str) and _TASK.fullmatch(name) for name in given)
    if not fine or len(set(given)) < len(given) or len(given) > _MAX_TASKS:
        raise ConversionError(f"config.json: 'lora_adaptations' is {shown(given)}, not the names of tasks")
    return list(given)


def _without_adapters(name: str, config: Config) -> str:
    name = name.removeprefix("roberta.")
    if (found := _ADAPTED.fullmatch(name)) is None:
        return name
    return f"{found[1]}.weight" if found[2] else _ELSEWHERE


def _of_adapters(name: str, config: Config) -> str:
    found = _ADAPTED.fullmatch(name.removeprefix("roberta."))
    return f"{found[1]}.lora_{found[3]}" if found and found[3] else _ELSEWHERE


def _halves_of(module: str, place: str) -> dict[str, Place]:
    """Where the two matrices of a module go; of a table's, A has as many rows as the table.

    In files that of tokens is looked up in, and that of kinds of text is multiplied from the left.
    """
    if place == "token_types":
        return {f"{module}.lora_A": f"{place}.weight.lora_b", f"{module}.lora_B": f"{place}.weight.lora_a"}
    return {f"{module}.lora_{half}": f"{place}.weight.lora_{half.lower()}" for half in "AB"}


_ADAPTER_NAMES: Final[dict[str, Place]] = {
    _ELSEWHERE: None, "pooler.dense.lora_A": None, "pooler.dense.lora_B": None,
    **{
        half: target
        for module, place in ROTATED.items()
        if isinstance(place, str)
        for half, target in _halves_of(module, place).items()
    },
}  # fmt: skip


def _of_task(number: int, values: Values, config: Config) -> Values:
    """That of one task, of all of them."""
    of_task: Values = values[number]
    return of_task


def _turned(number: int, values: Values, config: Config) -> Values:
    return _of_task(number, values, config).swapaxes(0, 1)


def _alpha(config: Config) -> float:
    given = config.get("lora_alpha")
    if isinstance(given, bool) or not isinstance(given, int | float | None) or not math.isfinite(given or 0):
        raise ConversionError(f"config.json: 'lora_alpha' is {shown(given)}, not a number")
    return 1.0 if given is None else float(given)


def _adapter(number: int, task: str, config: Config) -> Family:
    targets = (str(target).rpartition("}.")[2] for target in _ADAPTER_NAMES.values() if target)
    changes: dict[str, Change] = {target: partial(_of_task, number) for target in targets}
    changes["token_embd.weight.lora_b"] = partial(_turned, number)
    prefixes = config.get("task_instructions")
    prefix = prefixes.get(task) if isinstance(prefixes, Mapping) else None
    prefix = prefix if isinstance(prefix, str) and prefix else None
    return Family(
        hf=(), architecture="jina-bert-v3", names=_ADAPTER_NAMES, changes=changes, rename=_of_adapters,
        keys={
            "adapter.type": lambda config: "lora",
            "adapter.lora.alpha": _alpha,
            "adapter.lora.task_name": lambda config: task,
            "adapter.lora.prompt_prefix": lambda config: prefix,
        },
    )  # fmt: skip


def _adapters(config: Config) -> Mapping[str, Family]:
    return {task: _adapter(number, task, config) for number, task in enumerate(_tasks(config))}


#: Of the third embeddings.
_ROTATED: Final[dict[str, Assumption]] = {**ASSUMED, **ROTATED_ASSUMED}

FAMILIES: Final = (
    Family(
        hf=("JinaBertModel", "JinaBertForMaskedLM", "JinaBertForSequenceClassification"),
        architecture="jina-bert-v2", keys=KEYS, names=_NAMES, rename=inner("bert."), dropped=DROPPED,
        only_with=POOLER, when=_is_second, pre="jina-v2-de", ropes=PLAIN,
        assumed={
            **ASSUMED, "position_embedding_type": "alibi", "feed_forward_type": ("original", "geglu"),
        },
        harmless=(*HARMLESS, "model_max_length", "alibi_starting_size"),
    ),
    Family(
        hf=("JinaEmbeddingsV3Model",), architecture="jina-bert-v3", keys=KEYS, names=ROTATED, dropped=DROPPED,
        ropes=PLAIN, assumed=_ROTATED, harmless=(*HARMLESS, *ROTATED_HARMLESS),
    ),
    Family(
        hf=("XLMRobertaModel",), architecture="jina-bert-v3", keys=ROBERTA_KEYS,
        names={**ROTATED, _ELSEWHERE: None}, rename=_without_adapters, dropped=DROPPED,
        when=lambda config: bool(config.get("lora_adaptations")), adapters=_adapters,
        ropes=PLAIN, assumed=_ROTATED, harmless=(*HARMLESS, *ROTATED_HARMLESS),
    ),
)  # fmt: skip
