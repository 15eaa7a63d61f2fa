"""Replies of llama.cpp's server to completions, whole or in chunks."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from puna.options import Options
from puna.protocol import Chunk, Done, Generate, Prompted, TokenLogprob, TopLogprob
from puna.server.jobs.answer import AnswerBuilder
from puna.server.jobs.running import LoadProgress, Progress, PromptProgress
from puna.server.jobs.service import Finished
from puna.server.llamaserver.wire import SAMPLERS, CompletionBody

StopType = Literal["none", "eos", "limit", "word"]


class Timings(msgspec.Struct):
    """Counts and times: of the prompt without its `cache_n` cached tokens, and of the answer."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int | UnsetType = UNSET
    draft_n_accepted: int | UnsetType = UNSET

    @classmethod
    def of(cls, done: Done) -> Timings:
        made = cls(
            done.cached,
            *_rates(done.prompt_eval_count - done.cached, done.prompt_eval_duration),
            *_rates(done.eval_count, done.eval_duration),
        )
        if done.drafted:
            made.draft_n, made.draft_n_accepted = done.drafted, done.accepted
        return made


def _rates(count: int, duration_ns: int) -> tuple[int, float, float, float]:
    """Return a count, its milliseconds, milliseconds for each, and the count in a second."""
    took_ms = duration_ns / 1e6
    return count, took_ms, took_ms / count if count else 0.0, count * 1e3 / took_ms if took_ms else 0.0


class LikelyToken(msgspec.Struct):
    id: int
    token: str
    bytes: list[int]
    logprob: float | UnsetType = UNSET
    prob: float | UnsetType = UNSET


class ScoredToken(LikelyToken):
    """A token with its alternatives: log-probabilities, or with `post_sampling_probs` probabilities."""

    top_logprobs: list[LikelyToken] | UnsetType = UNSET
    top_probs: list[LikelyToken] | UnsetType = UNSET


class CompletionReply(msgspec.Struct, kw_only=True):
    """A complete answer, or a chunk, of which only the last has all fields."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: bool
    tokens_predicted: int
    tokens_evaluated: int
    model: str | UnsetType = UNSET
    generation_settings: dict[str, Any] | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    has_new_line: bool | UnsetType = UNSET
    truncated: bool | UnsetType = UNSET
    stop_type: StopType | UnsetType = UNSET
    stopping_word: str | UnsetType = UNSET
    tokens_cached: int | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    completion_probabilities: list[ScoredToken] | UnsetType = UNSET
    load_progress: LoadProgress | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


def settings_of(options: Options, **more: Any) -> dict[str, Any]:
    """Return `generation_settings` for `options`, with `more` fields of the request."""
    given = msgspec.structs.asdict(options)
    same = {name: given[name] for name in _SAME_NAMES}
    return {
        "seed": options.seed & 0xFFFFFFFF,  # -1 is unsigned there
        **same,
        "dry_sequence_breakers": list(options.dry_sequence_breakers),
        "stop": list(options.stop or ()),
        "max_tokens": options.num_predict,
        "n_predict": options.num_predict,
        "n_keep": options.num_keep,
        "n_discard": 0,
        "min_keep": 0,
        "samplers": list(SAMPLERS),
        "logit_bias": [list(pair) for pair in options.logit_bias],
        "ignore_eos": False,
        "stream": False,
        "n_probs": 0,
        "grammar": "",
        "timings_per_token": False,
        "post_sampling_probs": False,
        "lora": [],
        **more,
    }


_SAME_NAMES: Final = (
    "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma",
    "xtc_probability", "xtc_threshold", "typical_p", "repeat_last_n", "repeat_penalty", "presence_penalty",
    "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "mirostat",
    "mirostat_tau", "mirostat_eta",
)  # fmt: skip


def chosen(reply: CompletionReply, fields: Sequence[str]) -> Any:
    """Return only the `fields` of a reply, if there are any; `a/b` is b within a, under that name."""
    if not fields:
        return reply
    whole = msgspec.to_builtins(reply)
    found = {}
    for path in fields:
        value = whole
        for name in path.split("/"):
            value = value.get(name, UNSET) if isinstance(value, Mapping) else UNSET
        if value is not UNSET:
            found[path] = value
    return found


class CompletionWriter:
    """Writer of the answers to one request, to `prompts` in this order."""

    def __init__(self, body: CompletionBody, model: str, requests: Sequence[Generate], num_ctx: int) -> None:
        self._body = body
        self._model = model
        self._num_ctx = num_ctx
        # By answer:
        self._requests = [request for request in requests for _ in range(request.samples)]
        self._prompts = [Prompted(id=0, text="", tokens=[]) for _ in self._requests]
        self._read = [PromptProgress(0, 0, 0, 0.0) for _ in self._requests]
        self._began_ns = [0] * len(self._requests)
        self._predicted = [0] * len(self._requests)
        self._has_new_line = [False] * len(self._requests)

    def prompted(self, prompt: Prompted) -> None:
        """Note the prompt of a request."""
        samples = self._requests[prompt.sample].samples
        self._prompts[prompt.sample : prompt.sample + samples] = [prompt] * samples

    def evaluated(self, progress: Progress) -> None:
        """Note the progress of a prompt."""
        if progress.prompt_progress is not None:
            samples = self._requests[progress.sample].samples
            self._read[progress.sample : progress.sample + samples] = [progress.prompt_progress] * samples

    def chunk(self, part: Chunk) -> CompletionReply | None:
        """Return the chunk for a part of a streamed answer; None if only the prompt is to be evaluated."""
        if not self._body.limit:
            return None
        self._began_ns[part.sample] = self._began_ns[part.sample] or time.perf_counter_ns()
        self._predicted[part.sample] += len(part.tokens)
        self._has_new_line[part.sample] |= "\n" in part.text
        return CompletionReply(
            index=part.sample,
            content=part.text,
            tokens=part.tokens,
            id_slot=self._body.id_slot,
            stop=False,
            tokens_predicted=self._predicted[part.sample],
            tokens_evaluated=len(self._prompts[part.sample].tokens),
            completion_probabilities=self._probabilities(part.logprobs),
            timings=self._timings(part.sample) if self._body.timings_per_token else UNSET,
        )

    def _timings(self, sample: int) -> Timings:
        """Return the times of an answer so far."""
        read = self._read[sample]
        return Timings(
            read.cache,
            *_rates(read.processed - read.cache, round(read.time_ms * 1e6)),
            *_rates(self._predicted[sample], time.perf_counter_ns() - self._began_ns[sample]),
        )

    def progress(self, progress: Progress) -> CompletionReply:
        return CompletionReply(
            index=progress.sample,
            content="",
            tokens=[],
            id_slot=self._body.id_slot,
            stop=False,
            tokens_predicted=0,
            tokens_evaluated=0,
            **progress.fields,
        )

    def end(self, end: Finished) -> CompletionReply:
        """Return the last chunk of a streamed answer."""
        return self._final(end, "", list(end.unsent), self._has_new_line[end.sample])

    def whole(self, answer: AnswerBuilder) -> CompletionReply:
        """Return the reply with an answer, without streaming."""
        end, body = answer.end, self._body
        text = answer.text if body.limit else ""
        tokens = end.context[len(self._prompts[end.sample].tokens) :] if body.return_tokens else []
        made = self._final(end, text, tokens, "\n" in text)
        made.completion_probabilities = self._probabilities(answer.logprobs if body.limit else [])
        return made

    def _final(self, end: Finished, text: str, tokens: list[int], has_new_line: bool) -> CompletionReply:
        done, body, request = end.done, self._body, self._requests[end.sample]
        predicted = done.eval_count if body.limit else 0
        stops: StopType = "word" if done.stop is not None else "eos" if done.reason == "stop" else "limit"
        return CompletionReply(
            index=end.sample,
            content=text,
            tokens=tokens if body.limit else [],
            id_slot=body.id_slot,
            stop=True,
            model=self._model,
            tokens_predicted=predicted,
            tokens_evaluated=done.prompt_eval_count,
            generation_settings=self._settings(request),
            prompt=self._prompts[end.sample].text,
            has_new_line=has_new_line,
            truncated=bool(done.truncated or done.shifted),
            stop_type=stops if body.limit else "limit",
            stopping_word=done.stop or "",
            tokens_cached=done.cached,
            timings=Timings.of(done),
            warnings=list(end.warnings) or UNSET,
        )

    def _settings(self, request: Generate) -> dict[str, Any]:
        body = self._body
        return settings_of(
            request.options,
            max_tokens=body.limit,
            n_predict=body.limit,
            n_ctx=self._num_ctx,
            ignore_eos=body.ignore_eos,
            stream=body.stream,
            n_probs=body.n_probs,
            grammar=body.grammar if isinstance(body.grammar, str) else "",
            timings_per_token=body.timings_per_token,
            post_sampling_probs=body.post_sampling_probs,
            lora=[{"id": one.id, "name": one.name, "scale": one.scale} for one in request.lora or ()],
        )

    def _probabilities(self, scores: Sequence[TokenLogprob]) -> list[ScoredToken] | UnsetType:
        if not self._body.n_probs:
            return UNSET
        return [self._scored(one) for one in scores]

    def _scored(self, one: TokenLogprob) -> ScoredToken:
        made = ScoredToken(one.id, one.token, one.bytes)
        others = [self._likely(other) for other in one.top]
        if self._body.post_sampling_probs:
            made.prob, made.top_probs = math.exp(one.logprob), [each for each in others if each.prob]
        else:
            made.logprob, made.top_logprobs = one.logprob, others
        return made

    def _likely(self, one: TopLogprob) -> LikelyToken:
        if self._body.post_sampling_probs:
            return LikelyToken(one.id, one.token, one.bytes, prob=math.exp(one.logprob))
        return LikelyToken(one.id, one.token, one.bytes, logprob=one.logprob)
