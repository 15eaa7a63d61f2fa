"""BERT and its relatives: encoders, and rerankers, which are encoders with a classifier."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.family import PLAIN, Assumption, Change, Family, Key, Place, Split, halves
from puna.errors import ConversionError, shown

_LAYER: Final = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}  # fmt: skip
#: A classifier of two layers. BERT calls the first a pooler, which alone produces no embeddings.
_CLASSIFIER: Final[dict[str, Place]] = {
    "classifier.dense": "cls", "classifier.out_proj": "cls.output", "head.dense": "cls",
    "head.norm": "cls.norm", "pooler.dense": "cls", "classifier": "cls.output",
}  # fmt: skip
POOLER: Final = {f"cls.{kind}": "cls.output.weight" for kind in ("weight", "bias")}
NAMES: Final[dict[str, Place]] = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    **{f"encoder.layer.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _LAYER.items()},
    **_CLASSIFIER,
}
DROPPED: Final = ("embeddings.position_ids", "cls.", "lm_head.", "decoder.", "vocab_")
#: Suffixes in checkpoints that were converted from TensorFlow.
_ENDINGS: Final = {".gamma": ".weight", ".beta": ".bias"}


def _labels(config: Config) -> list[str] | None:
    """Return the names of a classifier's outputs; None if they are generated ones such as LABEL_0."""
    given = config.get("id2label")
    if not isinstance(given, dict) or (len(given) == 2 and given.get("0") == "LABEL_0"):
        return None
    return [str(text) for _, text in sorted(given.items(), key=lambda entry: int(entry[0]))]


KEYS: Final[dict[str, Key]] = {
    "attention.causal": lambda config: False,
    "classifier.output_labels": _labels,
}


def inner(*prefixes: str) -> Any:
    """Return a renaming that removes the name of the encoder within a model."""

    def rename(name: str, config: Config) -> str:
        for prefix in prefixes:
            name = name.removeprefix(prefix)
        for theirs, ours in _ENDINGS.items():
            name = name.removesuffix(theirs) + ours if name.endswith(theirs) else name
        return name

    return rename


def _has_usual_activation(config: Config) -> bool:
    return config.get("hidden_act", "activation") in (None, "gelu")


#: Defaults of transformers for the norms of BERT and its relatives.
_NORMS: Final = {"layer_norm_eps": 1e-12}
ASSUMED: Final[dict[str, Assumption]] = {
    "hidden_act": "gelu", "activation": "gelu", "is_decoder": False, "position_embedding_type": "absolute",
}  # fmt: skip
#: Settings of poolers and of a reranker's score, which GGUF files express by tensors if at all.
HARMLESS: Final = ("pooler_*", "directionality", "sentence_transformers", "tie_weights_", "emb_pooler")

_BERT: Final = Family(
    hf=("BertModel", "BertForMaskedLM", "BertForSequenceClassification"), architecture="bert", keys=KEYS,
    names=NAMES, rename=inner("bert."), dropped=DROPPED, only_with=POOLER, pre="jina-v2-en",
    when=_has_usual_activation, assumed=ASSUMED, harmless=HARMLESS, defaults=_NORMS, ropes=PLAIN,
)  # fmt: skip


_DISTILLED_LAYER: Final = {
    **{f"attention.{part}_lin": f"attn_{part}" for part in "qkv"}, "attention.out_lin": "attn_output",
    "sa_layer_norm": "attn_output_norm", "ffn.lin1": "ffn_up", "ffn.lin2": "ffn_down",
    "output_layer_norm": "layer_output_norm",
}  # fmt: skip
_DISTILLED: Final = Family(
    hf=("DistilBertModel", "DistilBertForMaskedLM"), architecture="bert", rename=inner("distilbert."),
    keys={
        **KEYS, "embedding_length": "dim", "feed_forward_length": lambda config: config["hidden_dim"],
        "attention.head_count": "n_heads", "attention.layer_norm_epsilon": lambda config: 1e-12,
    },
    names={
        **NAMES,
        **{
            f"transformer.layer.{{}}.{theirs}": f"blk.{{}}.{ours}"
            for theirs, ours in _DISTILLED_LAYER.items()
        },
    },
    dropped=DROPPED, pre="jina-v2-en", when=_has_usual_activation, assumed=ASSUMED,
    harmless=(*HARMLESS, "sinusoidal_pos_embds"), ropes=PLAIN,
)  # fmt: skip


#: RoBERTa's padding by default.
_PADDING: Final = {"pad_token_id": 1}


def _offset(config: Config) -> int:
    """Return the number of unused first positions: RoBERTa counts positions from after the padding id."""
    return int(config.get("pad_token_id", otherwise=-1)) + 1


def _from_first(values: Values, config: Config) -> Values:
    return values[_offset(config) :]


ROBERTA_KEYS: Final[dict[str, Key]] = {
    **KEYS,
    "context_length": lambda config: config.count("max_position_embeddings") - _offset(config),
}

_ROTATED_LAYER: Final = {
    "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "mixer.Wqkv": "attn_qkv",
    "mixer.out_proj": "attn_output", "mlp.fc11": "ffn_up", "mlp.fc12": "ffn_gate", "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down", "norm1": "attn_output_norm", "norm2": "layer_output_norm",
    "mlp.router.layer": "ffn_gate_inp", "mlp.experts.mlp.w1": "ffn_up_exps.weight",
    "mlp.experts.mlp.w2": "ffn_down_exps.weight",
}  # fmt: skip
ROTATED: Final[dict[str, Place]] = {
    "embeddings.word_embeddings": "token_embd", "embeddings.token_type_embeddings": "token_types",
    "emb_ln": "token_embd_norm", "pooler.dense": None,
    **{f"encoder.layers.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _ROTATED_LAYER.items()},
}  # fmt: skip


#: Settings of the authors' code for models with rotation that have only one possible value.
ROTATED_ASSUMED: Final[dict[str, Assumption]] = {
    "position_embedding_type": ("rotary", "absolute"), "causal": False, "prenorm": False,
    "parallel_block": False, "parallel_block_tied_norm": False, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False, "use_rms_norm": False, "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False, "reorder_and_upcast_attn": False,
}  # fmt: skip
ROTATED_HARMLESS: Final = (
    "lora_*", "load_trained_adapters", "task_instructions", "matryoshka_dimensions", "truncate_dim",
    "rotary_emb_*", "rotary_scaling_factor", "use_qkv_bias", "use_reg_tokens", "max_trained_positions",
    "dense_seq_output", "summary_*", "pad_vocab_size_multiple", "use_xentropy", "ffn_div", "shared_*",
    "expert_choice_router", "moe_impl", "moe_resid_pdrop", "model_max_length",
)  # fmt: skip

#: RoBERTa's classifier has a layer of its own, so nothing reads the pooler. Jina's second rerankers use it.
_ROBERTA: Final = Family(
    hf=tuple(
        f"{name}{kind}"
        for name in ("Roberta", "XLMRoberta", "Camembert")
        for kind in ("Model", "ForMaskedLM", "ForSequenceClassification")
    ),
    architecture="bert", keys=ROBERTA_KEYS, names={**NAMES, **ROTATED}, rename=inner("roberta."),
    dropped=DROPPED, changes={"position_embd.weight": _from_first}, pre="roberta-bpe",
    when=lambda config: _has_usual_activation(config) and not config.get("lora_adaptations"),
    assumed=ASSUMED, harmless=(*HARMLESS, *ROTATED_HARMLESS), defaults={**_NORMS, **_PADDING}, ropes=PLAIN,
)  # fmt: skip


def _trained_context(config: Config) -> int:
    """Return the length of the training texts, which the published settings exceed."""
    said, trained = (
        config.count("n_positions", "max_position_embeddings"),
        config.get("max_trained_positions"),
    )
    if said == 8192 and trained in (None, 2048) and config.get("n_positions"):
        return 2048
    return 512 if said == 2048 and config.get("moe_every_n_layers") else said


_NOMIC_KEYS: Final[dict[str, Key]] = {
    **KEYS, "context_length": _trained_context,
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count_kv": lambda config: None, "attention.key_length": lambda config: None,
    "attention.value_length": lambda config: None,
}  # fmt: skip


def _by_expert(values: Values, config: Config) -> Values:
    return values.reshape(config.count("num_experts"), config.count("n_inner"), config.count("n_embd"))


_EXPERT_CHANGES: Final[dict[str, Change]] = {
    "ffn_up_exps.weight": _by_expert,
    "ffn_down_exps.weight": lambda values, config: _by_expert(values, config).swapaxes(1, 2),
}


def _has_experts(config: Config) -> bool:
    return bool(config.get("moe_every_n_layers"))


_NOMIC: Final = Family(
    hf=("NomicBertModel",), architecture="nomic-bert", keys=_NOMIC_KEYS, names=ROTATED, dropped=DROPPED,
    when=lambda config: not _has_experts(config), pre="jina-v2-en", ropes=PLAIN,
    assumed={
        **ASSUMED, **ROTATED_ASSUMED, "activation_function": ("swiglu", "silu"), "hidden_act": ("silu",
        "swish"),
        "num_experts": 0, "moe_every_n_layers": 0,
    },
    harmless=(*HARMLESS, *ROTATED_HARMLESS, "moe_*"),
)  # fmt: skip
_NOMIC_MOE: Final = Family(
    hf=("NomicBertModel",), architecture="nomic-bert-moe",
    keys={
        **_NOMIC_KEYS, "moe_every_n_layers": "moe_every_n_layers", "expert_count": "num_experts",
        "expert_used_count": "moe_top_k",
    },
    names={**ROTATED, "encoder.layers.{}.mlp.experts.bias": None}, changes=_EXPERT_CHANGES,
    dropped=DROPPED, ropes=PLAIN,
    when=lambda config: _has_experts(config) and not config.get("moe_normalize_expert_weights"),
    assumed={
        **ASSUMED, **ROTATED_ASSUMED, "activation_function": "gelu", "num_shared_experts": 0,
        "moe_normalize_expert_weights": False,
    },
    harmless=(*HARMLESS, *ROTATED_HARMLESS),
)  # fmt: skip

_MODERN_LAYER: Final = {
    "attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output", "attn_norm": "attn_norm", "mlp.Wi": "ffn_up",
    "mlp.Wo": "ffn_down", "mlp_norm": "ffn_norm",
}  # fmt: skip


def _windows(config: Config) -> int | list[bool]:
    """Return the period of full-attention layers, counted from the first, or whether each is windowed."""
    every, windowed = config.count("global_attn_every_n_layers"), config.windows()
    if not windowed:
        return every
    period = windowed.index(False, 1) if False in windowed[1:] else len(windowed)
    return period if windowed == [layer % period > 0 for layer in range(len(windowed))] else windowed


def _classifier_pooling(config: Config) -> int | None:
    """Return GGUF's number of the classifier's pooling: the mean of all tokens, or the first one."""
    return {"mean": 1, "cls": 2}.get(str(config.get("classifier_pooling")))


_MODERN_KEYS: Final[dict[str, Key]] = {
    **KEYS, "vocab_size": "vocab_size", "attention.sliding_window": "local_attention",
    "attention.sliding_window_pattern": _windows, "rope.scaling.type": lambda config: "none",
    "hidden_activation": "hidden_activation", "classifier.pooling_type": _classifier_pooling,
    "attention.layer_norm_epsilon": ("norm_eps", "layer_norm_eps"),
}  # fmt: skip
_MODERN_NAMES: Final[dict[str, Place]] = {
    "embeddings.tok_embeddings": "token_embd", "embeddings.norm": "token_embd_norm",
    "final_norm": "output_norm",
    **{f"layers.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _MODERN_LAYER.items()},
}  # fmt: skip
_GLOBAL_THETA: Final = 160000.0
_MODERN_ASSUMED: Final[dict[str, Assumption]] = {
    "is_decoder": False, "position_embedding_type": ("absolute", "rope", "sans_pos"),
    "classifier_activation": "gelu", "hidden_activation": ("gelu", "silu"),
    "rope_theta": lambda config: (  # transformers does not read it
        config.peek("rope_theta")
        if config.peek("global_rope_theta") or config.peek("rope_parameters.full_attention.rope_theta")
        else _GLOBAL_THETA
    ),
}  # fmt: skip
_MODERN_DEFAULTS: Final = {"local_attention": 128, "global_attn_every_n_layers": 3, "norm_eps": 1e-5}
_MODERN_HARMLESS: Final = (
    *HARMLESS, "deterministic_*", "reference_compile", "repad_logits_with_grad", "layer_norm_eps",
    "hidden_act",
)  # fmt: skip
#: Leaves out the head of a masked model, whose names a classifier uses for another purpose.
_MODERN: Final = Family(
    hf=("ModernBertModel", "ModernBertForMaskedLM"), architecture="modern-bert", keys=_MODERN_KEYS,
    names=_MODERN_NAMES, rename=inner("model."), dropped=("head.", "decoder."), pre="modern-bert",
    ropes=PLAIN, assumed=_MODERN_ASSUMED, harmless=_MODERN_HARMLESS, defaults=_MODERN_DEFAULTS,
)  # fmt: skip
_MODERN_RANKING: Final = Family(
    hf=("ModernBertForSequenceClassification",), architecture="modern-bert", keys=_MODERN_KEYS,
    names={**_MODERN_NAMES, **_CLASSIFIER}, rename=inner("model."), pre="modern-bert",
    when=lambda config: config.get("classifier_activation") in (None, "gelu"),
    ropes=PLAIN, assumed=_MODERN_ASSUMED, harmless=_MODERN_HARMLESS, defaults=_MODERN_DEFAULTS,
)  # fmt: skip

_BERTS: Final = (_BERT, _DISTILLED, _ROBERTA, _NOMIC, _NOMIC_MOE, _MODERN, _MODERN_RANKING)


_FEED_FORWARD: Final = {
    "mlp.gated_layers": "ffn_up", "mlp.wo": "ffn_down", "mlp.layernorm": "layer_output_norm",
    # Models for code.
    "attention.self.layer_norm_q": "attn_q_norm", "attention.self.layer_norm_k": "attn_k_norm",
    "layer_norm_1": "attn_norm_2", "layer_norm_2": "layer_output_norm", "mlp.down_layer": "ffn_down",
}  # fmt: skip
_NAMES: Final[dict[str, Place]] = {
    **NAMES,
    **{f"encoder.layer.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _FEED_FORWARD.items()},
    # Up comes first here, unlike in `gated_layers`; with two tensors there is no doubt which is which.
    "encoder.layer.{}.mlp.up_gated_layer": Split(("blk.{}.ffn_up", "blk.{}.ffn_gate"), halves),
}


def _is_second(config: Config) -> bool:
    return config.get("position_embedding_type") == "alibi" and config.get("feed_forward_type") in (
        None, "original", "geglu",
    )  # fmt: skip


#: The name `rename` gives to tensors that belong to another file.
_ELSEWHERE: Final = "elsewhere"
_ADAPTED: Final = re.compile(r"(.*)\.parametrizations\.weight\.(?:(original)|0\.lora_([AB]))")
_MAX_TASKS: Final = 64
_TASK: Final = re.compile(r"\w[\w.-]{0,63}", re.ASCII)


def _tasks(config: Config) -> list[str]:
    """Return the names of the adapters. Raises ConversionError."""
    given = config.get("lora_adaptations") or []
    fine = isinstance(given, list) and all(isinstance(name, str) and _TASK.fullmatch(name) for name in given)
    if not fine or len(set(given)) < len(given) or len(given) > _MAX_TASKS:
        raise ConversionError(f"config.json: 'lora_adaptations' is {shown(given)}, not a list of task names")
    return list(given)


def _without_adapters(name: str, config: Config) -> str:
    name = name.removeprefix("roberta.")
    if (found := _ADAPTED.fullmatch(name)) is None:
        return name
    return f"{found[1]}.weight" if found[2] else _ELSEWHERE


def _adapter_name(name: str, config: Config) -> str:
    found = _ADAPTED.fullmatch(name.removeprefix("roberta."))
    return f"{found[1]}.lora_{found[3]}" if found and found[3] else _ELSEWHERE


def _adapter_places(module: str, place: str) -> dict[str, Place]:
    """Return the targets of a module's two matrices; A of an embedding table has one row per entry.

    In GGUF files the token embedding's A is looked up, and the token types' is multiplied from the left.
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
        for half, target in _adapter_places(module, place).items()
    },
}  # fmt: skip


def _task_matrix(number: int, values: Values, config: Config) -> Values:
    """Return one task's matrix from the stack of all tasks."""
    of_task: Values = values[number]
    return of_task


def _transposed_task_matrix(number: int, values: Values, config: Config) -> Values:
    return _task_matrix(number, values, config).swapaxes(0, 1)


def _lora_alpha(config: Config) -> float:
    given = config.get("lora_alpha")
    if isinstance(given, bool) or not isinstance(given, int | float | None) or not math.isfinite(given or 0):
        raise ConversionError(f"config.json: 'lora_alpha' is {shown(given)}, not a number")
    return 1.0 if given is None else float(given)


def _adapter(number: int, task: str, config: Config) -> Family:
    targets = (str(target).rpartition("}.")[2] for target in _ADAPTER_NAMES.values() if target)
    changes: dict[str, Change] = {target: partial(_task_matrix, number) for target in targets}
    changes["token_embd.weight.lora_b"] = partial(_transposed_task_matrix, number)
    prefixes = config.get("task_instructions")
    prefix = prefixes.get(task) if isinstance(prefixes, Mapping) else None
    prefix = prefix if isinstance(prefix, str) and prefix else None
    return Family(
        hf=(), architecture="jina-bert-v3", names=_ADAPTER_NAMES, changes=changes, rename=_adapter_name,
        keys={
            "adapter.type": lambda config: "lora",
            "adapter.lora.alpha": _lora_alpha,
            "adapter.lora.task_name": lambda config: task,
            "adapter.lora.prompt_prefix": lambda config: prefix,
        },
    )  # fmt: skip


def _adapters(config: Config) -> Mapping[str, Family]:
    return {task: _adapter(number, task, config) for number, task in enumerate(_tasks(config))}


#: Requirements of Jina's third embedding models.
_ROTATED: Final[dict[str, Assumption]] = {**ASSUMED, **ROTATED_ASSUMED}

FAMILIES: Final = (
    *_BERTS,
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
        ropes=PLAIN, assumed=_ROTATED, harmless=(*HARMLESS, *ROTATED_HARMLESS), defaults=_PADDING,
    ),
)  # fmt: skip
