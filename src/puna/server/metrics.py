"""Counters and timings for Prometheus, in a registry of each application's own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from puna.errors import PunaError, RequestCancelledError, ServerBusyError
from puna.protocol import BrokenPrefix, Chunk, Done, Embedded, Transcribed
from puna.server.http.logs import facts

_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
_NEXT_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
#: Seconds between two lines of the log about broken prefixes of one model.
_REPORT_S = 60.0

_log = logging.getLogger("puna.server.prefixes")

_LOAD_S = (0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)


class Metrics:
    """Metrics that are counted as they happen; `page` adds those measured on request."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        model = ["model"]
        self._requests = self._counter(
            "requests",
            "Finished generations, embeddings and transcriptions, by outcome",
            ["model", "outcome"],
        )
        self._prompt = self._counter("prompt_tokens", "Tokens of finished prompts and embedded texts", model)
        self._cached = self._counter("cached_tokens", "Tokens of them that were taken from the cache", model)
        self._broken = self._counter(
            "broken_prefixes", "Prompts that kept differing early from their conversation's", model
        )
        self._reported: dict[str, float] = {}  # when a broken prefix of a model was last logged
        self._generated = self._counter("generated_tokens", "Tokens generated", model)
        self._transcribed = self._counter("transcribed_seconds", "Seconds of transcribed recordings", model)
        source = [*model, "source"]
        self._drafted = self._counter("drafted_tokens", "Tokens drafted in finished generations", source)
        self._accepted = self._counter("accepted_tokens", "Drafted tokens that were accepted", source)
        self._first = self._histogram(
            "time_to_first_token_seconds", "Time from a request's arrival to its first token", _FIRST_TOKEN_S
        )
        self._next = self._histogram(
            "inter_token_seconds", "Time between two tokens of a generation", _NEXT_TOKEN_S
        )
        self._load_time = self._histogram("load_seconds", "Duration of loads", _LOAD_S)
        self._failed_loads = self._counter("failed_loads", "Loads that failed", model)
        self._crashes = self._counter("crashes", "Runner processes that died, or hung and were killed", model)

    def observation(self, model: str, arrived_ns: int, choices: int = 1) -> Observation:
        """Return a context manager that observes a generation of `choices` answers, or an embedding.

        `arrived_ns` is its time of arrival by `time.perf_counter_ns`.
        """
        return Observation(self, model, arrived_ns, choices)

    def prefix_broken(self, model: str, broken: BrokenPrefix) -> None:
        """Count a broken prefix, and log it unless one of the model was logged in the last minute."""
        self._broken.labels(model).inc()
        now_s = time.monotonic()
        if now_s - self._reported.get(model, -_REPORT_S) >= _REPORT_S:
            self._reported[model] = now_s
            _log.warning("%s", broken, extra={"fields": {"model": model}})

    def loaded(self, model: str, seconds: float) -> None:
        self._load_time.labels(model).observe(seconds)

    def load_failed(self, model: str) -> None:
        self._failed_loads.labels(model).inc()

    def crashed(self, model: str) -> None:
        self._crashes.labels(model).inc()

    def page(self, now: Iterable[Metric], accept: str = "") -> tuple[bytes, str]:
        """Return all metrics and those of `now`, in the format of the Accept header, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(_Both(self._registry, list(now))), content_type

    def _counter(self, name: str, meaning: str, labels: list[str]) -> Counter:
        return Counter(f"puna_{name}", meaning, labels, registry=self._registry)

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"puna_{name}", meaning, ["model"], buckets=buckets, registry=self._registry)


class Observation:
    """Counts and times of one request's generation or embedding, for the metrics and the request log.

    A request may have several answers, to one prompt (samples, whose prompt counts once) or to several.
    """

    def __init__(self, metrics: Metrics, model: str, arrived_ns: int, choices: int) -> None:
        self._metrics = metrics
        self._model = model
        self._arrived_ns = arrived_ns
        self._generated = metrics._generated.labels(model)
        self._next = metrics._next.labels(model)
        self._last_ns: dict[int, int] = {}  # time of each choice's last token
        self._counted = [0] * choices
        self._unfinished = choices
        self._outcome = ""
        self._facts = facts()

    def __enter__(self) -> Observation:
        self._facts.model = self._model
        return self

    def loaded(self) -> None:
        """Note that the model is loaded."""
        self._facts.load_s = self._since_arrival_s(time.perf_counter_ns())

    def prefix_broken(self, broken: BrokenPrefix) -> None:
        """Note that the prompt could not reuse its conversation's earlier ones."""
        self._metrics.prefix_broken(self._model, broken)

    def chunk(self, choice: int, chunk: Chunk) -> None:
        """Note more tokens. Tokens that arrive together share the time since the previous ones."""
        now_ns = time.perf_counter_ns()
        count = len(chunk.tokens)
        last_ns = self._last_ns.get(choice)
        if not self._last_ns:
            self._first_token(now_ns)
        if last_ns is not None:
            for _ in range(count):
                self._next.observe((now_ns - last_ns) / 1e9 / count)
        if count or last_ns is None:
            self._last_ns[choice] = now_ns
        self._count(choice, self._counted[choice] + count)

    def done(self, choice: int, done: Done) -> None:
        """Note the end of an answer, and count its tokens without text."""
        self._unfinished -= 1
        self._outcome = max(self._outcome, done.reason, key=("", "stop", "length").index)
        self._count(choice, max(done.eval_count, self._counted[choice]))
        if done.sample == 0:
            self._read(done.prompt_eval_count, done.cached)
        if done.drafted:
            self._metrics._drafted.labels(self._model, done.drafted_by).inc(done.drafted)
            self._metrics._accepted.labels(self._model, done.drafted_by).inc(done.accepted)

    def embedded(self, events: Sequence[Embedded]) -> None:
        """Note the end of a request to embed."""
        self._unfinished = 0
        self._outcome = "embedded"
        self._read(sum(event.prompt_eval_count for event in events), sum(event.cached for event in events))

    def heard(self) -> None:
        """Note a segment of a transcription."""
        if self._facts.first_token_s is None:
            self._first_token(time.perf_counter_ns())

    def transcribed(self, event: Transcribed) -> None:
        """Note the end of a transcription."""
        self._unfinished = 0
        self._outcome = "transcribed"
        self._read(event.prompt_eval_count, 0)
        self._count(0, event.eval_count)
        self._metrics._transcribed.labels(self._model).inc(event.total_s)

    def _first_token(self, now_ns: int) -> None:
        self._facts.first_token_s = self._since_arrival_s(now_ns)
        self._metrics._first.labels(self._model).observe(self._facts.first_token_s)

    def _read(self, tokens: int, cached: int) -> None:
        self._metrics._prompt.labels(self._model).inc(tokens)
        self._metrics._cached.labels(self._model).inc(cached)
        self._facts.prompt_tokens = (self._facts.prompt_tokens or 0) + tokens
        self._facts.cached_tokens = (self._facts.cached_tokens or 0) + cached

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outcome = _outcome(error) if self._unfinished else self._outcome
        self._facts.outcome = outcome
        if self._unfinished and isinstance(error, Exception):
            self._facts.error = str(error)
        self._metrics._requests.labels(self._model, outcome).inc()

    def _count(self, choice: int, tokens: int) -> None:
        """Note the number of tokens of `choice` so far."""
        self._generated.inc(tokens - self._counted[choice])
        self._counted[choice] = tokens
        self._facts.generated_tokens = sum(self._counted)

    def _since_arrival_s(self, now_ns: int) -> float:
        return (now_ns - self._arrived_ns) / 1e9


def _outcome(error: BaseException | None) -> str:
    """Return the outcome of a generation that did not end by itself."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit | RequestCancelledError):
        return "cancelled"
    if isinstance(error, ServerBusyError):
        return "busy"
    return "refused" if isinstance(error, PunaError) and error.status < 500 else "error"


class _Both(Collector):
    """A registry and further metrics as one collector."""

    def __init__(self, registry: CollectorRegistry, more: list[Metric]) -> None:
        self._registry = registry
        self._more = more

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            # Creation times of counters are useless here, and would add half as many series again.
            metric.samples = [one for one in metric.samples if not one.name.endswith("_created")]
            yield metric
        yield from self._more
