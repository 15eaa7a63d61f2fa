"""Keyword arguments of the methods that generate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypedDict, get_args

from puna.errors import OptionError, shown
from puna.grammar.format import Format, format_of
from puna.options import AdapterScale
from puna.protocol import Priority
from puna.unknown import did_you_mean


class RequestOptions(TypedDict, total=False):
    """Sampling options with Ollama's names and meanings, and other settings of a request.

    They default to those of the stored model, else to Ollama's.
    """

    num_predict: int  # maximum number of tokens to generate; -1 or 0: ten contexts
    num_keep: int  # tokens kept at the start when the context is full; -1: the whole prompt
    stop: Sequence[str]  # texts that end the answer
    seed: int  # -1: random
    temperature: float  # 0: always the most likely token
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]  # by token id, -100 to 100
    banned_tokens: Sequence[int]
    min_tokens: int  # before the answer may end
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    mirostat: Literal[0, 1, 2]
    mirostat_tau: float
    mirostat_eta: float
    speculate: Literal["off", "prompt", "draft", "mtp"]  # source of drafts: same answer, faster
    truncate: bool  # False: raise instead of cutting a prompt that is too long
    shift: bool  # False: end when the context is full instead of dropping old tokens
    ignore_eos: bool  # continue after an end token
    sampled_logprobs: bool  # of the distribution sampled from, not of the model's own logits
    think_budget: int  # maximum tokens of thinking; then the answer begins
    cache_prompt: bool  # False: neither read nor write the prefix cache
    lora: Mapping[str, float]  # scales of the model's adapters by name; {}: none
    format: Any  # of the answer: "json", a JSON schema, a pydantic class or a `Format`
    priority: Priority  # "batch" uses the capacity that interactive requests leave


#: Options that are fields of the request rather than sampling options.
_REQUEST_FIELDS: Final = (
    "truncate",
    "shift",
    "ignore_eos",
    "sampled_logprobs",
    "think_budget",
    "cache_prompt",
    "lora",
    "format",
    "priority",
)
#: Options that are set when a model is loaded.
_AT_LOAD: Final = (
    *("num_ctx", "num_thread", "draft", "adapters"),
    *("engine", "num_gpu", "main_gpu", "tensor_split", "use_mmap"),
)


def split_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split into sampling options and fields of the request. Raises `OptionError` for anything else."""
    for name in given:
        if name in _AT_LOAD:
            raise OptionError(f"{name} is set when the model is loaded: puna.load(..., {name}=...)")
        if name not in RequestOptions.__annotations__:
            raise OptionError(
                f"unknown option: {name}{did_you_mean(name, RequestOptions.__annotations__)}; "
                f"the options are {', '.join(RequestOptions.__annotations__)}"
            )
    treatment = {name: given[name] for name in _REQUEST_FIELDS if name in given}
    for name, value in treatment.items():
        if name == "priority":
            if value not in get_args(Priority):
                allowed = " or ".join(repr(choice) for choice in get_args(Priority))
                raise OptionError(f"priority must be {allowed}, not {value!r}")
        elif name == "think_budget":
            treatment[name] = checked_budget(value)
        elif name == "lora":
            treatment[name] = checked_adapters(value)
        elif name == "format":
            treatment[name] = checked_format(value)
        elif not isinstance(value, bool):
            raise OptionError(f"{name} must be True or False, not {value!r}")
    return {name: value for name, value in given.items() if name not in treatment}, treatment


def checked_budget(value: Any) -> int | None:
    """Return the value of the keyword `think_budget`. Raises `OptionError`."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise OptionError(f"think_budget must be a number of tokens, not {shown(value)}")
    return value


def checked_adapters(value: Any) -> list[AdapterScale] | None:
    """Return the value of the keyword `lora`. Raises `OptionError`."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(
        isinstance(name, str) and isinstance(scale, int | float) for name, scale in value.items()
    ):
        raise OptionError(f"lora must map names of adapters to scales, not {shown(value)}")
    return [AdapterScale(name=name, scale=float(scale)) for name, scale in value.items()]


def checked_format(value: Any) -> Format | None:
    """Return the value of the keyword `format`; None for none. Raises `RequestError`."""
    if isinstance(value, type) and hasattr(value, "model_json_schema"):
        return Format.json_schema(value.model_json_schema())
    return format_of(value)
