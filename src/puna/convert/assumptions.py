"""Settings that no GGUF key carries: each must have the value that readers assume, or have no effect.

Every value of config.json is accounted for in one of three ways: the tables read it, so a key or a tensor
carries it; it equals what every reader of the architecture assumes (`ASSUMED`, `Family.assumed`); or it
changes nothing (`_HARMLESS`, `Family.harmless`). Anything else is refused.
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

#: Required values for every architecture whose tables do not read the setting.
ASSUMED: Final[Mapping[str, Assumption]] = {
    "hidden_act": _SILU,
    "hidden_activation": _SILU,
    "is_decoder": (True, False),  # a decoder works the same either way
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

#: Settings with no effect on what a model computes, as patterns that match whole names.
_HARMLESS: Final = re.compile(
    "|".join(
        (
            # How the model was saved, and the software that runs it.
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
            # Presence of tensors, which the checkpoint itself shows.
            "num_(nextn_predict|mtp)_layers", "(.*_)?bias", ".*_expert_bias", "use_qk_norm",
            # Training.
            ".*dropout.*", ".*pdrop", ".*drop_rate", ".*drop_prob", ".*loss.*", "initializer_.*", "init_.*",
            ".*_init", ".*_init_.*", ".*jitter.*", "seq_aux", "router_z_.*", "rescale_prenorm_residual",
            "moe_capacity.*", "moe_token_dispatcher_type", "sparse_pred.*", "time_step_(min|max|floor)",
            # Tokens and sampling.
            ".*token_ids?", ".*token_index", ".*_start_id", "(id2label|label2id|num_labels)(\\..*)?",
            "(max|min)_(new_)?(length|tokens)", "max_new_tokens", "do_sample", "early_stopping",
            "num_.*beam.*",
            "temperature", "top_[kp]", "typical_p", "repetition_penalty", "length_penalty",
            "(encoder_)?no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "diversity_penalty",
            "remove_invalid_values", "exponential_decay_length_penalty", "(begin_)?suppress_tokens",
            "forced_.*", "tokenizer_.*", "tie_encoder_decoder", "vocab_size.*", "type_vocab_size",
            # Images and audio.
            "(vision|audio|image|video|visual|mm|sam|clip|projector|talker|thinker|speech|tts|vit)_.*",
            "multimodal_.*",
        )
    )
)  # fmt: skip
#: Names that belong to attention, rotation, norms, experts or scaling factors, and so may matter.
_NEAR: Final = re.compile(
    r"att(n|ention)|rope|rotary|norm|expert|moe|rout|scal(e|ing)|factor|softcap|clip|window|multiplier|theta|topk"
)
#: Prefixes of the rotation settings of full-attention layers.
_FULL_ROTATION: Final = re.compile(r"^(rope_scaling|rope_parameters)\.(full_attention\.)?")
_DEEPEST: Final = 8


def check_settings(
    config: Config, family: Family, ignore: Collection[str] = (), within: str = ""
) -> list[str]:
    """Return the names of unknown settings, once the family's tables have been read.

    Raises ConversionError for a setting whose value differs from the only one a file of the architecture can
    have, and for an unknown setting that looks as if it changes what the model computes. Settings named in
    `ignore` may have any value. `within` is the prefix of the settings' names in config.json, such as
    "vision_config.".
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
        if value is None:
            if _assumption(name, config, family) is True:  # Python takes null for false
                _check(within + name, value, True, config, family)
        elif (assumption := _assumption(name, config, family)) is not None:
            _check(within + name, value, assumption, config, family)
        elif not _is_accounted_for(name, config, family):
            if _NEAR.search(name.lower()) and _is_numerical(value):
                raise ConversionError(
                    f"config.json: '{within}{name}' is {shown(value)}, which no file of architecture "
                    f"{family.architecture} is known to carry; if it does not matter, "
                    f"{how_to_ignore(within + name, ignore)}"
                )
            unknown.append(within + name)
    return unknown


def how_to_ignore(name: str, ignored: Collection[str]) -> str:
    """Return the hint that tells how to convert despite a setting, beside those `ignored` already."""
    options = " ".join(f"--ignore {each}" for each in (*ignored, name))
    return f"`puna convert {options} FOLDER OUT.gguf` writes a file to use instead of the folder"


def one_of(values: Collection[Any]) -> str:
    """Return values joined for a message: "'a', 'b' or 'c'"."""
    *others, last = (shown(value) for value in values)
    return f"{', '.join(others)} or {last}" if others else last


def _assumption(name: str, config: Config, family: Family) -> Assumption | None:
    """Return the value a setting must have; those common to all architectures apply only if it is unread."""
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
    """Yield the setting's name and the names of the settings that contain it."""
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _leaves(settings: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield every setting, nested ones with dotted names."""
    for key, value in settings.items():
        if isinstance(value, dict) and depth < _DEEPEST:
            yield from _leaves(value, f"{prefix}{key}.", depth + 1)
        else:
            yield prefix + key, value


def _is_numerical(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, list):
        return bool(value) and all(isinstance(each, int | float) for each in value)
    return isinstance(value, int | float)
