"""The options of a request, with Ollama's names, defaults and coercion rules.

The same names are used by Modelfile `PARAMETER`s, by `options` in the native API and by the keyword
arguments of the Python library.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from puna.config import env
from puna.errors import OptionError, RequestError, shown
from puna.unknown import unknown_and_ignored

#: Levels of thinking, for models with more than on and off.
THINK_LEVELS = ("high", "medium", "low", "max")

#: Maximum tokens of a budget of thinking.
LONGEST_THINKING: Final = 2**31 - 1

_THINK_VALUES = ", ".join(f'"{level}"' for level in THINK_LEVELS) + ", true, false, or a number of tokens"


def check_think(value: Any, budget: int | None) -> tuple[bool | str | None, int | None]:
    """Return a request's `think`, a switch or a level (None if absent), and its budget in tokens.

    A number is a budget, and 0 turns thinking off. Raises RequestError.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        budget = value if budget is None else min(budget, value)
        value = value > 0
    if budget is not None and not 0 <= budget <= LONGEST_THINKING:
        raise RequestError(f"a budget of thinking must be 0 to {LONGEST_THINKING:,} tokens, not {budget:,}")
    if value is None or isinstance(value, bool):
        return value, budget
    if not isinstance(value, str):
        raise RequestError(f"think must be a boolean, string or number ({_THINK_VALUES})")
    if value not in THINK_LEVELS:
        raise RequestError(f'invalid think value: "{value}" (must be {_THINK_VALUES})')
    return value, budget


#: Maximum number of stop strings (or sequence breakers) of one request, and of their characters in total.
MAX_STOPS = 256
LONGEST_STOPS = 16_384

#: Maximum number of tokens in `logit_bias`.
MAX_BIASES = 16_384


#: Maximum number of GPUs of a machine.
MAX_GPUS = 16

#: Maximum number of replicas of a model.
MAX_REPLICAS: Final = 4096

#: Engines for a model: Puna's own, llama.cpp, or "auto" for Puna's own if it can run the model.
ENGINES = ("auto", "puna", "llamacpp")
AUTO, PUNA, LLAMACPP = ENGINES


class Placement(msgspec.Struct, frozen=True):
    """The placement of a model on the processor and GPUs."""

    num_gpu: int = -1  # layers on GPUs, at most; negative: all, if there is one
    main_gpu: int = 0  # the GPU that holds them, or with Puna's own engine the first ones
    tensor_split: tuple[float, ...] = ()  # share of each GPU
    use_mmap: bool = True  # with llama.cpp: leave weights in the mapped file instead of reading them


class AdapterFile(msgspec.Struct, frozen=True):
    """An adapter a model is loaded with, and its scale in requests that set none."""

    path: str
    name: str = ""  # used by requests; empty: that of its file
    scale: float = 1.0


#: Maximum number of adapters of a model.
MAX_ADAPTERS: Final = 64

#: Maximum scale of an adapter; larger ones are mistakes.
LARGEST_SCALE: Final = 1e4


def is_scale(number: float) -> bool:
    """Whether `number` is a valid scale of an adapter."""
    return math.isfinite(number) and abs(number) <= LARGEST_SCALE


class AdapterScale(msgspec.Struct, frozen=True):
    """The scale of an adapter in a request; the adapter is given by number or name."""

    id: int | None = None
    name: str | None = None
    scale: float = 1.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """All options of one generation. Lengths are in tokens.

    `repeat_penalty` defaults to 1 (off), unlike Ollama's documented 1.1: Ollama's engine ignores penalties,
    so a client that sends none gets the same greedy output from both.
    """

    # Loading. num_ctx None: chosen by the server; num_thread 0: automatic; engine None: `PUNA_ENGINE`;
    # replicas None: `PUNA_REPLICAS`.
    num_ctx: int | None = None
    num_batch: int = 512
    engine: str | None = None
    num_gpu: int = -1
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    use_mmap: bool | None = None
    num_thread: int = 0
    draft: str | None = None  # draft model: a small model of the same family
    replicas: tuple[int, int] | None = None  # minimum and maximum in a cluster; maximum 0: one on each node
    # Speculative decoding, which changes an answer's speed but not its text. None: `PUNA_SPECULATE`.
    speculate: str | None = None
    # Length.
    num_keep: int = 4
    num_predict: int = -1
    stop: tuple[str, ...] | None = None  # None: those of the model's template
    # Sampling.
    seed: int = -1
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # token ids, and the values added to their logits
    banned_tokens: tuple[int, ...] = ()
    min_tokens: int = 0  # before the answer may end
    top_n_sigma: float = -1.0  # 0 or less: off
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry_multiplier: float = 0.0  # 0: off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1  # -1: all
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0  # 1 or 2: replaces top_k, typical_p, top_p, min_p and XTC
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1

    @classmethod
    def merge(cls, *layers: Mapping[str, Any] | None) -> Options:
        """Merge `layers`; for each key the last layer wins.

        Ignores `None` values and unknown keys (see `ignored`), and truncates floats given for integer
        options. Raises `OptionError` naming the option, its value and its range.
        """
        values: dict[str, Any] = {}
        for layer in layers:
            for name, value in (layer or {}).items():
                if value is not None and name in _TYPES:
                    values[name] = _coerce(name, value)
        return cls(**values)

    @property
    def placement(self) -> Placement:
        """The placement of the model."""
        return Placement(self.num_gpu, self.main_gpu, self.tensor_split, self.use_mmap is not False)

    @staticmethod
    def ignored(
        *layers: Mapping[str, Any] | None,
        engine: str = PUNA,
        scales: bool = False,
        on_gpu: int = 0,
        gpus: int = 0,
    ) -> list[str]:
        """Return a sentence for each option in `layers` that has no effect with `engine`.

        These are unknown options, with Puna's own engine those for GPUs that it does not follow, and
        `replicas` unless the model `scales`. `on_gpu` is the number of layers on GPUs, `gpus` that of GPUs.
        The values null, false, 0 and -1 need no sentence, because they request the default.
        """
        given: dict[str, Any] = {}
        for layer in layers:
            given |= layer or {}
        requested = [name for name, value in given.items() if value and value != -1]  # -1: automatic
        reasons = _USELESS
        if engine != LLAMACPP:
            reasons = reasons | (_UNPLACED if not on_gpu else _ON_GPU if gpus < 2 else _ON_GPUS)
        reasons = reasons if scales else reasons | _UNSCALED
        useless = [f'option "{name}" has no effect: {reasons[name]}' for name in requested if name in reasons]
        unknown = [name for name in requested if name not in _TYPES and name not in reasons]
        return useless + (unknown_and_ignored("option", unknown, _TYPES) if unknown else [])


def speculate_from_env() -> str | None:
    """Return the default of `speculate` from `PUNA_SPECULATE`, or None. Raises `OptionError`."""
    try:
        return Options.merge({"speculate": env("SPECULATE") or None}).speculate
    except OptionError as error:
        raise OptionError(f"PUNA_SPECULATE: {error}") from None


def drafts_itself(default: str | None) -> bool:
    """Whether a model with prediction heads drafts with them, if `speculate` is `default`."""
    return default in (None, "mtp")


def engine_from_env() -> str:
    """Return the default of `engine` from `PUNA_ENGINE`. Raises `OptionError`."""
    try:
        return Options.merge({"engine": env("ENGINE") or None}).engine or AUTO
    except OptionError as error:
        raise OptionError(f"PUNA_ENGINE: {error}") from None


def replicas_from_env() -> tuple[int, int]:
    """Return the default of `replicas` from `PUNA_REPLICAS`. Raises `OptionError`."""
    try:
        return Options.merge({"replicas": env("REPLICAS") or None}).replicas or (1, 0)
    except OptionError as error:
        raise OptionError(f"PUNA_REPLICAS: {error}") from None


_TYPES: dict[str, str] = {
    "num_ctx": "integer", "num_batch": "integer", "engine": "string", "num_gpu": "integer",
    "main_gpu": "integer", "tensor_split": "shares", "use_mmap": "boolean",
    "num_thread": "integer", "num_keep": "integer", "num_predict": "integer", "draft": "string",
    "replicas": "bounds", "speculate": "string", "stop": "array",
    "seed": "integer", "temperature": "float32", "top_k": "integer",
    "top_p": "float32", "min_p": "float32", "typical_p": "float32", "repeat_last_n": "integer",
    "repeat_penalty": "float32", "presence_penalty": "float32", "frequency_penalty": "float32",
    "logit_bias": "object", "banned_tokens": "tokens", "min_tokens": "integer",
    "top_n_sigma": "float32", "xtc_probability": "float32", "xtc_threshold": "float32",
    "dynatemp_range": "float32", "dynatemp_exponent": "float32",
    "dry_multiplier": "float32", "dry_base": "float32", "dry_allowed_length": "integer",
    "dry_penalty_last_n": "integer", "dry_sequence_breakers": "array",
    "mirostat": "integer", "mirostat_tau": "float32", "mirostat_eta": "float32",
}  # fmt: skip

#: Ollama's options without effect, and why.
_USELESS = {
    "low_vram": "num_gpu says how much is on a GPU",
    "use_mlock": "weights are always copied into memory when loaded",
    "numa": "the server's PUNA_NUMA spreads models over memory nodes",
    **dict.fromkeys(("tfs_z", "penalize_newline"), "this kind of sampling is not supported"),
    "f16_kv": "PUNA_KV_CACHE_TYPE chooses the type of cached keys and values",
    "logits_all": "the request's logprobs returns probabilities",
    "vocab_only": "'puna tokenize' needs no weights",
}

#: Options without effect on models that Puna's own engine computes on the processor.
_UNPLACED = {
    **dict.fromkeys(
        ("num_gpu", "main_gpu", "tensor_split", "low_vram"), "models are computed by the processor"
    ),
    "use_mmap": "weights are always copied into memory when loaded",
}

#: The same for models on GPUs, and if there is only one.
_ON_GPUS = {"use_mmap": "weights are always copied into memory when loaded"}
_ON_GPU = _ON_GPUS | dict.fromkeys(("main_gpu", "tensor_split"), "there is one GPU")

#: Options that only clusters use.
_UNSCALED = {"replicas": "the server runs no cluster"}

#: Sources of drafts for speculative decoding: none, prompt lookup, the draft model, or the model's own heads
#: for multi-token prediction.
SPECULATE = ("off", "prompt", "draft", "mtp")

_CHOICES: dict[str, tuple[str, ...]] = {"speculate": SPECULATE, "engine": ENGINES}

#: Maximum characters of `tensor_split` and `replicas` as text.
_LONGEST_SHARES = 1000
_LONGEST_BOUNDS = 20

#: Inclusive ranges. Ollama clamps or ignores values out of range; Puna raises an error.
_RANGES: dict[str, tuple[float, float]] = {
    "num_ctx": (1, 2**31 - 1),
    "num_batch": (1, 2**20),
    "num_gpu": (-(2**31), 2**31 - 1),
    "main_gpu": (0, MAX_GPUS - 1),
    "tensor_split": (0.0, 1e6),
    "num_thread": (0, 4096),
    "num_predict": (-2, 2**31 - 1),
    "num_keep": (-1, 2**31 - 1),
    "seed": (-(2**63), 2**63 - 1),
    "temperature": (0.0, 100.0),
    "top_k": (-1, 2**31 - 1),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "repeat_last_n": (-1, 2**31 - 1),
    "repeat_penalty": (1e-3, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "logit_bias": (-100.0, 100.0),
    "min_tokens": (0, 2**31 - 1),
    "top_n_sigma": (-1.0, 1000.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "dynatemp_range": (0.0, 100.0),
    "dynatemp_exponent": (0.0, 100.0),
    "dry_multiplier": (0.0, 100.0),
    "dry_base": (1.0, 100.0),
    "dry_allowed_length": (1, 2**31 - 1),
    "dry_penalty_last_n": (-1, 2**31 - 1),
    "mirostat": (0, 2),
    "mirostat_tau": (0.0, 100.0),
    "mirostat_eta": (0.0, 1.0),
}


def int_range(name: str) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer option."""
    low, high = _RANGES[name]
    return int(low), int(high)


def _coerce(name: str, value: Any) -> Any:
    kind = _TYPES[name]
    if kind == "array":
        if not isinstance(value, list | tuple):
            raise OptionError(f'option "{name}" must be of type array, not {shown(value)}')
        if not all(isinstance(item, str) for item in value):
            raise OptionError(f'option "{name}" must be an array of strings, not {shown(value)}')
        return _checked_texts(name, tuple(item for item in value if item))
    if kind == "tokens":
        return _coerce_tokens(name, value)
    if kind == "object":
        return _coerce_by_token(name, value)
    if kind == "bounds":
        return _coerce_bounds(name, value)
    if kind == "shares":
        return _coerce_shares(name, value)
    if kind == "string":
        if not isinstance(value, str):
            raise OptionError(f'option "{name}" must be of type string, not {shown(value)}')
        if name in _CHOICES and value not in _CHOICES[name]:
            raise OptionError(
                f'option "{name}" must be one of {", ".join(_CHOICES[name])}, not {shown(value)}'
            )
        return value
    if kind == "boolean":
        if not isinstance(value, bool):
            raise OptionError(f'option "{name}" must be of type boolean, not {shown(value)}')
        return value
    return _coerce_number(name, kind, value)


def _checked_texts(name: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    if len(texts) > MAX_STOPS:
        raise OptionError(f'option "{name}" must have at most {MAX_STOPS} strings, not {len(texts):,}')
    if sum(map(len, texts)) > LONGEST_STOPS:
        raise OptionError(
            f'option "{name}" must have at most {LONGEST_STOPS:,} characters in all its strings'
        )
    return texts


def _coerce_tokens(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not all(type(item) is int and item >= 0 for item in value):
        raise OptionError(f'option "{name}" must be an array of token ids, not {shown(value)}')
    if len(value) > MAX_BIASES:
        raise OptionError(f'option "{name}" must have at most {MAX_BIASES:,} tokens, not {len(value):,}')
    return tuple(value)


def _coerce_shares(name: str, value: Any) -> tuple[float, ...]:
    """Return a number for each GPU; a Modelfile writes them as one text, such as `3,1`."""
    if isinstance(value, str):
        try:
            value = [float(part) for part in value[:_LONGEST_SHARES].split(",")]
        except ValueError:
            raise OptionError(f'option "{name}" must be numbers such as 3,1, not {shown(value)}') from None
    if not isinstance(value, list | tuple):
        raise OptionError(f'option "{name}" must be of type array, not {shown(value)}')
    if len(value) > MAX_GPUS:
        raise OptionError(f'option "{name}" must have at most {MAX_GPUS} numbers, not {len(value):,}')
    return tuple(_coerce_number(name, "float32", number) for number in value)


def _coerce_bounds(name: str, value: Any) -> tuple[int, int]:
    """Return the minimum, at least 1, and the maximum of `2`, `"1,4"` or `[1, 4]`; 0 is no maximum."""
    parts = value
    if isinstance(value, str):
        parts = [part.strip() for part in value[:_LONGEST_BOUNDS].split(",")]
        parts = [int(part) if re.fullmatch(r"\d+", part, re.ASCII) else None for part in parts]
    elif isinstance(value, int):
        parts = [value]
    whole = isinstance(parts, list | tuple) and all(type(part) is int for part in parts)
    if not whole or len(parts) not in (1, 2):
        raise OptionError(
            f'option "{name}" must be a number, or a minimum and a maximum such as 1,4, not {shown(value)}'
        )
    least, most = parts[0], parts[-1]
    if not all(0 <= part <= MAX_REPLICAS for part in parts):
        raise OptionError(f'option "{name}" must be between 0 and {MAX_REPLICAS}, not {shown(value)}')
    if most and least > most:
        raise OptionError(f'option "{name}" must not have a minimum above its maximum: {shown(value)}')
    return max(least, 1), most


def _coerce_by_token(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """Return numbers by token id; JSON writes ids as strings."""
    if not isinstance(value, Mapping):
        raise OptionError(
            f'option "{name}" must be of type object (token ids and numbers), not {shown(value)}'
        )
    if len(value) > MAX_BIASES:
        raise OptionError(f'option "{name}" must have at most {MAX_BIASES:,} tokens, not {len(value):,}')
    by_token: dict[int, float] = {}
    for key, number in value.items():
        if isinstance(key, bool) or not re.fullmatch(r"\d{1,10}", str(key), re.ASCII):
            raise OptionError(f'option "{name}" must have token ids as keys, not {shown(key)}')
        by_token[int(key)] = _coerce_number(name, "float32", number)
    return tuple(by_token.items())


def _coerce_number(name: str, kind: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise OptionError(f'option "{name}" must be of type {kind}, not {shown(value)}')
    if name in _RANGES:
        low, high = _RANGES[name]
        if not low <= value <= high:
            raise OptionError(f'option "{name}" must be between {low:g} and {high:g}, not {shown(value)}')
    return int(value) if kind == "integer" else float(value)
