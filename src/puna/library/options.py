"""The keyword arguments of everything that generates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypedDict, get_args

from puna.errors import OptionError, shown
from puna.grammar.format import Format, format_of
from puna.options import AdapterScale
from puna.protocol import Priority
from puna.unknown import did_you_mean


class RequestOptions(TypedDict, total=False):
    """Options of a request, with Ollama's names and meanings, and how the request is treated.

    What is not given is as the stored model says, else Ollama's default.
    """

    num_predict: int  # tokens to generate at most; -1 or 0: ten contexts
    num_keep: int  # tokens at the start that stay when the context is full; -1: the whole prompt
    stop: Sequence[str]  # texts that end the answer
    seed: int  # -1: a random one
    temperature: float  # 0: always the likeliest token
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
    min_tokens: int  # before the model may end
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
    speculate: Literal["off", "prompt", "draft", "mtp"]  # draft tokens: the same answer, sooner
    truncate: bool  # False: an error instead of cutting a prompt that is too long
    shift: bool  # False: end when the context is full, instead of dropping old tokens
    ignore_eos: bool  # go on after the model's end
    sampled_logprobs: bool  # log-probabilities of what tokens were drawn from, not of the model's own logits
    cache_prompt: bool  # False: take nothing from the prefix cache and leave nothing in it
    lora: Mapping[str, float]  # adapters of the model by name, each with its scale; {}: none
    format: Any  # what the answer must be: "json", a JSON schema, a class of pydantic's, or a `Format`
    priority: Priority  # "batch" takes what interactive requests leave


#: Those that are no sampling options but fields of the request.
_TREATMENT: Final = (
    "truncate",
    "shift",
    "ignore_eos",
    "sampled_logprobs",
    "cache_prompt",
    "lora",
    "format",
    "priority",
)
#: Options that are decided when a model is loaded.
_AT_LOAD: Final = (
    *("num_ctx", "num_thread", "draft", "adapters"),
    *("engine", "num_gpu", "main_gpu", "tensor_split", "use_mmap"),
)


def split_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sampling options, and fields of the request. Raises `OptionError` for anything else."""
    for name in given:
        if name in _AT_LOAD:
            raise OptionError(f"{name} is decided when the model is loaded: puna.load(..., {name}=...)")
        if name not in RequestOptions.__annotations__:
            raise OptionError(
                f"unknown option: {name}{did_you_mean(name, RequestOptions.__annotations__)}; "
                f"there are {', '.join(RequestOptions.__annotations__)}"
            )
    treatment = {name: given[name] for name in _TREATMENT if name in given}
    for name, value in treatment.items():
        if name == "priority":
            if value not in get_args(Priority):
                allowed = " or ".join(repr(choice) for choice in get_args(Priority))
                raise OptionError(f"priority must be {allowed}, not {value!r}")
        elif name == "lora":
            treatment[name] = checked_adapters(value)
        elif name == "format":
            treatment[name] = checked_format(value)
        elif not isinstance(value, bool):
            raise OptionError(f"{name} must be True or False, not {value!r}")
    return {name: value for name, value in given.items() if name not in treatment}, treatment


def checked_adapters(value: Any) -> list[AdapterScale] | None:
    """What a keyword `lora` asks for. Raises `OptionError`."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(
        isinstance(name, str) and isinstance(scale, int | float) for name, scale in value.items()
    ):
        raise OptionError(f"lora must be scales by names of adapters, not {shown(value)}")
    return [AdapterScale(name=name, scale=float(scale)) for name, scale in value.items()]


def checked_format(value: Any) -> Format | None:
    """What a keyword `format` asks for; None for nothing. Raises `RequestError`."""
    if isinstance(value, type) and hasattr(value, "model_json_schema"):
        return Format.json_schema(value.model_json_schema())
    return format_of(value)
