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
from puna.errors import OptionError, shown
from puna.unknown import unknown_and_ignored

#: Levels of thinking, for models that take more than yes or no.
THINK_LEVELS = ("high", "medium", "low", "max")

#: Stop strings (or sequence breakers) of one request, and characters of all of them.
MAX_STOPS = 256
LONGEST_STOPS = 16_384

#: Tokens in `logit_bias`.
MAX_BIASES = 16_384


#: GPUs of one machine.
MAX_GPUS = 16

#: What may compute a model: Puna's own engine, llama.cpp, or whichever of them can, Puna's first.
ENGINES = ("auto", "puna", "llamacpp")
AUTO, PUNA, LLAMACPP = ENGINES


class Placement(msgspec.Struct, frozen=True):
    """Where llama.cpp keeps a model. Puna's own engine computes on the processor, whatever is asked."""

    num_gpu: int = -1  # layers on the GPU; negative: all, if there is one
    main_gpu: int = 0  # the GPU that has all of them, unless `tensor_split` says otherwise
    tensor_split: tuple[float, ...] = ()  # shares of each GPU
    use_mmap: bool = True  # leave weights in the mapped file instead of reading them


class AdapterFile(msgspec.Struct, frozen=True):
    """An adapter a model is loaded with, and how strongly it counts in requests that say nothing."""

    path: str
    name: str = ""  # by which requests ask for it; empty: its file's
    scale: float = 1.0


#: Adapters of one model.
MAX_ADAPTERS: Final = 64

#: Larger scales of adapters are a mistake.
LARGEST_SCALE: Final = 1e4


def is_scale(number: float) -> bool:
    """Whether an adapter may count so much."""
    return math.isfinite(number) and abs(number) <= LARGEST_SCALE


class AdapterScale(msgspec.Struct, frozen=True):
    """How strongly an adapter of the model counts in a request: by its number, or its name."""

    id: int | None = None
    name: str | None = None
    scale: float = 1.0


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """All options of one generation. Lengths are in tokens.

    `repeat_penalty` defaults to 1 (off), unlike Ollama's documented 1.1: Ollama's engine ignores penalties,
    so a client that sends none gets the same greedy output from both.
    """

    # Loading. num_ctx None: the server decides; num_thread 0: automatic; engine None: `PUNA_ENGINE`.
    num_ctx: int | None = None
    num_batch: int = 512
    engine: str | None = None
    num_gpu: int = -1
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    use_mmap: bool | None = None
    num_thread: int = 0
    draft: str | None = None  # draft model: a small model of the same family
    # Speculative decoding, which changes the speed of an answer but not the answer. None: `PUNA_SPECULATE`.
    speculate: str | None = None
    # Length.
    num_keep: int = 4
    num_predict: int = -1
    stop: tuple[str, ...] | None = None  # None: as the model's template says
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
    logit_bias: tuple[tuple[int, float], ...] = ()  # token ids, and what is added to their logits
    banned_tokens: tuple[int, ...] = ()
    min_tokens: int = 0  # before the end
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
    mirostat: int = 0  # 1 or 2: instead of top_k, typical_p, top_p, min_p and XTC
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
        """Where the model is to be, if llama.cpp runs it."""
        return Placement(self.num_gpu, self.main_gpu, self.tensor_split, self.use_mmap is not False)

    @staticmethod
    def ignored(*layers: Mapping[str, Any] | None, engine: str = PUNA) -> list[str]:
        """A sentence for each option in `layers` that changes nothing of a model that `engine` runs.

        Those are unknown ones, and for Puna's own engine those for GPUs. Nothing is said of null, false,
        zero and -1, which ask for what there is anyway.
        """
        given: dict[str, Any] = {}
        for layer in layers:
            given |= layer or {}
        asked = [name for name, value in given.items() if value and value != -1]  # -1: automatic
        reasons = _USELESS if engine == LLAMACPP else _USELESS | _UNPLACED
        useless = [f'option "{name}" has no effect: {reasons[name]}' for name in asked if name in reasons]
        unknown = [name for name in asked if name not in _TYPES and name not in reasons]
        return useless + unknown_and_ignored("option", unknown, _TYPES)


def speculate_from_env() -> str | None:
    """The default for `speculate` from `PUNA_SPECULATE`; None if not set. Raises `OptionError`."""
    try:
        return Options.merge({"speculate": env("SPECULATE") or None}).speculate
    except OptionError as error:
        raise OptionError(f"PUNA_SPECULATE: {error}") from None


def drafts_itself(default: str | None) -> bool:
    """Whether a model with prediction heads drafts with them, where `speculate` is `default`."""
    return default in (None, "mtp")


def engine_from_env() -> str:
    """The default for `engine` from `PUNA_ENGINE`. Raises `OptionError`."""
    try:
        return Options.merge({"engine": env("ENGINE") or None}).engine or AUTO
    except OptionError as error:
        raise OptionError(f"PUNA_ENGINE: {error}") from None


_TYPES: dict[str, str] = {
    "num_ctx": "integer", "num_batch": "integer", "engine": "string", "num_gpu": "integer",
    "main_gpu": "integer", "tensor_split": "shares", "use_mmap": "boolean",
    "num_thread": "integer", "num_keep": "integer", "num_predict": "integer", "draft": "string",
    "speculate": "string", "stop": "array",
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

#: Options of Ollama's that change nothing here, and why.
_USELESS = {
    "low_vram": "models are computed by the processor",
    **dict.fromkeys(("use_mlock", "numa"), "weights are always copied into memory when loaded"),
    **dict.fromkeys(("tfs_z", "penalize_newline"), "this way of sampling is not offered"),
    "f16_kv": "PUNA_KV_CACHE_TYPE chooses the type of cached keys and values",
    "logits_all": "logprobs of a request returns probabilities",
    "vocab_only": "'puna tokenize' needs no weights",
}

#: Those of them that llama.cpp knows what to do with.
_UNPLACED = {
    **dict.fromkeys(("num_gpu", "main_gpu", "tensor_split"), "models are computed by the processor"),
    "use_mmap": "weights are always copied into memory when loaded",
}

#: How to draft tokens for speculative decoding: not at all, by prompt lookup, with the draft model, or with
#: the model's own heads of multi-token prediction.
SPECULATE = ("off", "prompt", "draft", "mtp")

_CHOICES: dict[str, tuple[str, ...]] = {"speculate": SPECULATE, "engine": ENGINES}

#: Characters of `tensor_split` as a text.
_LONGEST_SHARES = 1000

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
    """The smallest and the largest value of an integer option."""
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
    """A number for each GPU; a Modelfile has them as one text, as in `3,1`."""
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


def _coerce_by_token(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """Numbers by token id; JSON spells ids as strings."""
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
