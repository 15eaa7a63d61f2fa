"""Settings that no key of a file carries: each has the value that readers assume, or changes nothing.

Every value of config.json is accounted for in one of three ways. The tables read it, so that a key or a
tensor carries it; it has the value that every reader of the architecture assumes (`ASSUMED`,
`Family.assumed`); or it changes nothing (`_HARMLESS`, `Family.harmless`). Anything else is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from puna.convert.config import Config
from puna.convert.family import Assumption, Family
from puna.errors import ConversionError, shown

_SILU: Final = ("silu", "swish")

#: Of all architectures whose tables do not read it.
ASSUMED: Final[Mapping[str, Assumption]] = {
    "hidden_act": _SILU,
    "hidden_activation": _SILU,
    "is_decoder": (True, False),  # a decoder is one either way
    "layer_types": lambda config: ["full_attention"] * config.layers,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "quantization_config.quant_method": ("fp8", "mxfp4", "compressed-tensors"),
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "cross_attention_hidden_size": (),
    "use_sliding_window": False,
    "use_mrope": False,
    "partial_rotary_factor": 1.0,
    "rope_parameters.partial_rotary_factor": 1.0,
    "rope_parameters.truncate": True,
    "rope_parameters.sliding_attention.rope_type": "default",
    "rope_interleaved": False,
    "position_embedding_type": ("absolute", "rope"),
}

#: Settings that change nothing in what a model computes, as patterns that match whole names.
_HARMLESS: Final = re.compile(
    "|".join(
        (
            # How it was saved, and what runs it.
            "_.*", "architectures", "auto_map", "model_type", ".*dtype", "transformers_version", "use_cache",
            "return_dict(_in_generate)?", "output_(attentions|hidden_states|scores|router_logits)",
            "torchscript", "tokenizer_class", "prefix", "task_specific_params", "problem_type",
            "finetuning_task", "attn_implementation", ".*flash_att.*", "use_(fla|triton|mamba)_.*",
            "use_mambapy",
            "use_associative_scan", "fuse_.*", "fused_.*", "gradient_checkpointing.*",
            "chunk_size_feed_forward",
            "use_bfloat16", "tf_legacy_loss", "unsloth_.*", "version", "language", "license", "name_or_path",
            "model_name", "ep_size", "pretraining_tp", "num_logits_to_keep", "unpad_inputs", "pad_logits",
            "use_memory_efficient_attention", ".*_kernels?_options", "quantization_config\\..*",
            "cache_implementation", "is_llama_config", "transformers\\.js_config", "output_past",
            # Tensors are there or not.
            "num_nextn_predict_layers", "(.*_)?bias", ".*_expert_bias", "use_qk_norm",
            # Training.
            ".*dropout.*", ".*pdrop", ".*drop_rate", ".*drop_prob", ".*loss.*", "initializer_.*", "init_.*",
            ".*_init", ".*_init_.*", ".*jitter.*", "seq_aux", "router_z_.*", "rescale_prenorm_residual",
            "moe_capacity.*", "moe_token_dispatcher_type", "sparse_pred.*", "time_step_(min|max|floor)",
            # Tokens, and what an answer is chosen by.
            ".*token_ids?", ".*token_index", ".*_start_id", "(id2label|label2id|num_labels)(\\..*)?",
            "(max|min)_(new_)?(length|tokens)", "max_new_tokens", "do_sample", "early_stopping",
            "num_.*beam.*",
            "temperature", "top_[kp]", "typical_p", "repetition_penalty", "length_penalty",
            "(encoder_)?no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "diversity_penalty",
            "remove_invalid_values", "exponential_decay_length_penalty", "(begin_)?suppress_tokens",
            "forced_.*", "tokenizer_.*", "tie_encoder_decoder", "vocab_size.*", "type_vocab_size",
            # Pictures and sounds.
            "(vision|audio|image|video|visual|mm|sam|clip|projector|talker|thinker|speech|tts|vit)_.*",
            "multimodal_.*",
        )
    )
)  # fmt: skip
#: Names of settings that attention, rotation, norms, experts and factors have.
_NEAR: Final = re.compile(
    r"att(n|ention)|rope|rotary|norm|expert|moe|rout|scal(e|ing)|factor|softcap|clip|window|multiplier|theta|topk"
)
#: How names of settings of the rotation in layers that see everything may begin.
_FULL_ROTATION: Final = re.compile(r"^(rope_scaling|rope_parameters)\.(full_attention\.)?")
_DEEPEST: Final = 8


def check_settings(
    config: Config, family: Family, ignore: Collection[str] = (), within: str = ""
) -> list[str]:
    """Return the names of settings that nobody knows, after the family's tables were read.

    Raises ConversionError for a setting with another value than files of the architecture can have, and for
    an unknown one that seems to change what the model computes. Settings that `ignore` names may be anything.
    `within` is what config.json has the settings in, as "vision_config.": names begin with it.
    """
    ignore = {name.removeprefix(within) for name in ignore if name.startswith(within)}
    if strange := next((name for name in ignore if config.peek(name) is None), None):
        raise ConversionError(f"config.json has no setting {shown(strange)} to ignore")
    for name in sorted(config.outside - {"tie_word_embeddings", *ignore}):
        if config.peek(name) is not None and not _HARMLESS.fullmatch(name):
            raise ConversionError(
                f"config.json: '{name}' is outside 'text_config', where transformers does not look for it"
            )
    unknown = []
    for name, value in _leaves({**config.own, **config.defaults}):
        if any(part in ignore for part in _outer(name)):
            continue
        if (assumption := _assumption(name, config, family)) is not None:
            _check(within + name, value, assumption, config, family)
        elif not _is_accounted_for(name, config, family):
            if _NEAR.search(name.lower()) and _is_numerical(value):
                raise ConversionError(
                    f"config.json: '{within}{name}' is {shown(value)}, which a file of architecture "
                    f"{family.architecture} is not known to carry; if it does not matter, "
                    f"{how_to_ignore(within + name, ignore)}"
                )
            unknown.append(within + name)
    return unknown


def how_to_ignore(name: str, ignored: Collection[str]) -> str:
    """Say for an error how to convert a folder whatever a setting says, beside those `ignored` already."""
    options = " ".join(f"--ignore {each}" for each in (*ignored, name))
    return f"`puna convert {options} FOLDER OUT.gguf` writes a file to use instead of the folder"


def one_of(values: Collection[Any]) -> str:
    """Values for a message: "'a', 'b' or 'c'"."""
    *others, last = (shown(value) for value in values)
    return f"{', '.join(others)} or {last}" if others else last


def _assumption(name: str, config: Config, family: Family) -> Assumption | None:
    """The value that a setting must have; of those that all architectures have in common, only if unread."""
    usual = _FULL_ROTATION.sub("rope_parameters.", name)
    for spelling in (name, usual):
        if spelling in family.assumed:
            return family.assumed[spelling]
    return None if name in config.read else ASSUMED.get(usual)


def _check(name: str, value: Any, assumption: Assumption, config: Config, family: Family) -> None:
    right = assumption(config) if callable(assumption) else assumption
    allowed = right if isinstance(right, tuple) else (right,)
    if not any(_equal(value, each) for each in allowed):
        only = f"can only have {one_of(allowed)}" if allowed else "has no such setting"
        raise ConversionError(
            f"config.json: '{name}' is {shown(value)}, but a file of architecture "
            f"{family.architecture} {only}"
        )


def _equal(value: Any, right: Any) -> bool:
    if isinstance(value, float) and isinstance(right, int | float):
        return math.isclose(value, right, rel_tol=1e-6)
    return bool(value == right)


def _is_accounted_for(name: str, config: Config, family: Family) -> bool:
    return any(
        part in config.read
        or _HARMLESS.fullmatch(part)
        or any(fnmatchcase(part, pattern) for pattern in family.harmless)
        for part in _outer(name)
    )


def _outer(name: str) -> Iterator[str]:
    """The setting's name, and those of the settings it is within."""
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _leaves(settings: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """All settings that are not null, those within others with dotted names."""
    for key, value in settings.items():
        if isinstance(value, dict) and depth < _DEEPEST:
            yield from _leaves(value, f"{prefix}{key}.", depth + 1)
        elif value is not None:
            yield prefix + key, value


def _is_numerical(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, int | float) for each in value)
    return isinstance(value, int | float)
