"""Request bodies of llama.cpp's server for completions, read into generation requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec.structs
from pydantic import Field

from puna.errors import RequestError, UnavailableError, shown
from puna.grammar.format import Format
from puna.options import MAX_BIASES
from puna.protocol import MAX_SAMPLES, Excerpt, Infill, Mixed, Prompt
from puna.server.http.bodies import LONGEST_NAME, MAX_DOCUMENTS, Body, Many, Name
from puna.server.jobs.jobs import GenerationSpec, check_top_logprobs
from puna.server.jobs.own_fields import OwnFields, ProgressField, SamplingFields, only_one
from puna.server.jobs.service import Service

#: Options that neither the request nor the model sets.
DEFAULTS: Final[Mapping[str, Any]] = {"top_p": 0.95, "min_p": 0.05, "num_keep": 0, "stop": []}

#: Samplers in the order in which they apply, and the options that switch each off.
SAMPLERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": -1.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "temperature": {"temperature": 1.0, "dynatemp_range": 0.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
}
_OTHER_NAMES: Final = {"typical_p": "typ_p", "top-k": "top_k", "top-p": "top_p", "min-p": "min_p"}

#: Maximum fields of a reply to choose, and samplers to name.
_MAX_NAMED: Final = 256
_MAX_CHOICES: Final = 2048
_MAX_TOKEN: Final = 2**31 - 1
_RANDOM_SEED: Final = 2**32 - 1  # -1 in 32 bits

Names = Annotated[list[Annotated[str, Field(max_length=LONGEST_NAME)]], Field(max_length=_MAX_NAMED)]


def wanted_model(backend: Service, given: str) -> str:
    """Return the name of a request's model: `given`, else that of the only model in memory.

    Raises RequestError if there is none, or several.
    """
    if given.strip():
        return given
    names = [entry.model.name for entry in backend.fleet.loaded()]
    if len(names) == 1:
        return names[0]
    there = f"{len(names)} are in memory ({', '.join(sorted(names))})" if names else "none is in memory"
    raise RequestError(
        f"model is required, because {there}: add a field model to the request, or ?model=NAME to its path"
    )


class CompletionBody(OwnFields, ProgressField, SamplingFields):
    """The body of `/completion`; the fields of its last lines have no effect here."""

    model: Name = ""
    prompt: Any = None
    stream: bool = False
    n_predict: int | None = None
    max_tokens: int | None = None  # the same
    n_keep: int | None = None
    n_cmpl: int = 1
    stop: Any = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logit_bias: Any = None
    json_schema: Any = None
    samplers: Names | None = None
    n_probs: int = 0
    post_sampling_probs: bool = False
    return_tokens: bool = False
    timings_per_token: bool = False
    response_fields: Names = Field(default_factory=list)
    n_indent: int = 0
    t_max_predict_ms: int = 0
    id_slot: int = -1
    t_max_prompt_ms: Any = None
    n_cache_reuse: Any = None
    n_discard: Any = None
    sse_ping_interval: Any = None
    min_keep: int = 0

    @property
    def limit(self) -> int:
        """The maximum tokens of the answer; -1: none. 0 only evaluates the prompt."""
        return next((one for one in (self.n_predict, self.max_tokens) if one is not None), -1)

    @property
    def has_line_limits(self) -> bool:
        return self.n_indent > 0 or self.t_max_predict_ms > 0

    @property
    def ignored(self) -> list[str]:
        sentences = super().ignored
        if self.min_keep > 0:
            sentences.append('field "min_keep" is ignored: samplers keep at least one token')
        for name in self.samplers or ():
            if _OTHER_NAMES.get(name, name) not in SAMPLERS:
                sentences.append(f"sampler {shown(name)} is unknown and ignored")
        return sentences

    def spec(self, model: str) -> GenerationSpec:
        """Return the generation request. Raises RequestError."""
        return self._spec(model, prompts_of(self.prompt))

    def _spec(self, model: str, prompts: Sequence[Prompt]) -> GenerationSpec:
        check_top_logprobs(self.n_probs, "n_probs")
        if not 1 <= self.n_cmpl <= MAX_SAMPLES:
            raise RequestError(f"n_cmpl must be between 1 and {MAX_SAMPLES}, not {self.n_cmpl}")
        if len(prompts) * self.n_cmpl > _MAX_CHOICES:
            raise RequestError(
                f"{len(prompts)} prompts with n_cmpl={self.n_cmpl} are {len(prompts) * self.n_cmpl} answers, "
                f"and at most {_MAX_CHOICES} are allowed in one request"
            )
        if self.has_line_limits and len(prompts) * self.n_cmpl > 1:
            raise RequestError("n_indent and t_max_predict_ms are for requests with one answer")
        request = self.request(
            samples=self.n_cmpl,
            logprobs=self.n_probs > 0,
            top_logprobs=self.n_probs,
            progress=self.progress or self.has_line_limits or (self.stream and self.timings_per_token),
        )
        if self.post_sampling_probs:
            request = msgspec.structs.replace(request, sampled_logprobs=True)
        return GenerationSpec(
            model=model,
            endpoint="generate",
            request=request,
            prompts=prompts,
            options=self.options(),
            defaults=DEFAULTS,
            think=False,
            format=self._format,
            raw=True,
            ignored=self.ignored,
        )

    def options(self) -> dict[str, Any]:
        """Return the options that are given. Raises RequestError."""
        bias, banned = _biases(self.logit_bias)
        given = {
            "temperature": None if self.temperature is None else max(self.temperature, 0.0),
            "top_p": self.top_p,
            "seed": -1 if self.seed == _RANDOM_SEED else self.seed,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "num_keep": self.n_keep,
            # Evaluating a prompt gives its first token in any case.
            "num_predict": self.limit or 1,
            "stop": _stops(self.stop),
            "logit_bias": bias or None,
            **self.sampling(),
            **self._switched_off(),
        }
        if banned:
            given["banned_tokens"] = [*(self.banned_tokens or ()), *banned]
        return {name: value for name, value in given.items() if value is not None}

    def _switched_off(self) -> dict[str, Any]:
        """Return options that switch off the samplers that `samplers` leaves out."""
        if self.samplers is None:
            return {}
        named = {_OTHER_NAMES.get(name, name) for name in self.samplers}
        return {key: value for name in SAMPLERS if name not in named for key, value in SAMPLERS[name].items()}

    def _format(self) -> Format | None:
        formats = self.formats()
        if self.json_schema is not None:
            formats["json_schema"] = Format.json_schema(self.json_schema)
        return only_one(formats)


def _stops(given: Any) -> list[str] | None:
    if isinstance(given, str):
        return [given]
    if given is None or (isinstance(given, list) and all(isinstance(item, str) for item in given)):
        return given
    raise RequestError("stop must be a list of strings")


def _biases(given: Any) -> tuple[dict[str, Any], list[int]]:
    """Return biases by token id, and banned tokens, of pairs or of an object. Raises RequestError."""
    if given is None:
        return {}, []
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list) or len(pairs) > MAX_BIASES:
        raise RequestError(
            f"logit_bias must be a list of at most {MAX_BIASES:,} pairs such as [15043, -1.0], or an object"
        )
    biases: dict[str, Any] = {}
    banned: list[int] = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise RequestError(f"logit_bias: {shown(pair)} is not a pair of a token id and a number")
        token, bias = pair
        if isinstance(token, bool) or not str(token).isdecimal() or not str(token).isascii():
            raise RequestError(
                f"logit_bias takes token ids, not {shown(token)}; /tokenize gives those of a text"
            )
        if bias is False:
            banned.append(int(token))
        else:
            biases[str(token)] = bias
    return biases, banned


_PROMPT_FORMS: Final = (
    "prompt must be a string, a list of token ids and strings, an object with a prompt_string, "
    "or a list of these"
)


def prompts_of(given: Any) -> list[Prompt]:
    """Return the prompts of a request. A list with a number is one prompt. Raises RequestError."""
    if given is None:
        raise RequestError('"prompt" is missing')
    if isinstance(given, list) and not any(type(item) is int for item in given):
        if not given:
            raise RequestError('"prompt" must not be an empty list')
        return [_prompt(item) for item in given]
    return [_prompt(given)]


def _prompt(given: Any) -> Prompt:
    if isinstance(given, dict):
        if given.get("multimodal_data"):
            raise UnavailableError(
                "multimodal_data is not available yet in this version; send images in /v1/chat/completions"
            )
        given = given.get("prompt_string")
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not given or not all(_is_part(item) for item in given):
        raise RequestError(_PROMPT_FORMS)
    if all(isinstance(item, int) for item in given):
        return given
    parts: list[str | list[int]] = []
    for item in given:
        if isinstance(item, str):
            parts.append(item)
        elif parts and isinstance(parts[-1], list):
            parts[-1].append(item)
        else:
            parts.append([item])
    return Mixed(parts)


def _is_part(item: Any) -> bool:
    return isinstance(item, str) or (type(item) is int and 0 <= item <= _MAX_TOKEN)


class ExtraInput(Body):
    """A part of another file."""

    text: str
    filename: str = Field(default="", max_length=LONGEST_NAME)


class InfillBody(CompletionBody):
    """The body of `/infill`, where `prompt` is the text between `input_prefix` and the gap."""

    input_prefix: str | None = None
    input_suffix: str | None = None
    input_extra: Annotated[Many[ExtraInput], Field(max_length=MAX_DOCUMENTS)] = Field(default_factory=list)

    def spec(self, model: str) -> GenerationSpec:
        """Return the generation request. Raises RequestError."""
        if self.prompt is not None and not isinstance(self.prompt, str):
            raise RequestError('"prompt" must be a string')
        if self.input_prefix is None:
            raise RequestError('"input_prefix" is required')
        if self.input_suffix is None:
            raise RequestError('"input_suffix" is required')
        gap = Infill(
            before=self.input_prefix,
            after=self.input_suffix,
            line=self.prompt or "",
            extra=[Excerpt(one.text, one.filename) for one in self.input_extra],
        )
        return self._spec(model, [gap])
