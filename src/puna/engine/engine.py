"""The engine: many sequences, one model, one step at a time.

Requests come in from any thread (`submit`, `cancel`); one thread calls `step` again and again
(`start` runs such a thread). Events go to each request's sink, on the stepping thread, which a sink
must not hold up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np

from puna import ops
from puna.engine.batching import Share, assemble, plan
from puna.engine.events import Chunk, Done, Failed, Generate, TokenLogprob, TopLogprob
from puna.engine.fitting import shift_count, truncate
from puna.engine.replay import Replay
from puna.engine.sequence import Sequence, Sink
from puna.engine.slots import Slots
from puna.engine.text import Piece, Released, TextStream
from puna.errors import (
    ContextLengthError,
    GenerationError,
    NotSupportedError,
    PunaError,
    RequestError,
    RunnerError,
)
from puna.kvcache.types import HALVES, KVTypes
from puna.model.input import Input
from puna.model.load import LoadedModel
from puna.sample import Sampler, log_probabilities

log = logging.getLogger("puna.engine")

T = TypeVar("T")

#: A generation without a limit of its own ends after this many contexts.
_LIMIT_CONTEXTS = 10


class Engine:
    """Runs up to `parallel` sequences of at most `context` tokens each; more requests wait their turn."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        context: int,
        parallel: int = 1,
        batch_size: int = 512,
        cache_types: KVTypes = HALVES,
    ) -> None:
        if loaded.trained_context and context > loaded.trained_context:
            log.warning("num_ctx %d is more than the model's %d; using that", context, loaded.trained_context)
            context = loaded.trained_context
        self.loaded = loaded
        self.context = context
        self.parallel = parallel
        self.batch_size = min(batch_size, context)
        ops.keep_freed_memory()
        self.cache = loaded.make_cache(sequences=parallel, context=context, types=cache_types)
        self.step_started: float | None = None  # time.monotonic() of the running step
        self._replay = Replay(loaded.model, self.cache)
        self.slots = Slots(self.cache, parallel)
        self._queue: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._first = 0  # whose prompt is served first in the next batch
        self._changed = threading.Condition()
        self._incoming: deque[Sequence] = deque()
        self._cancelled: set[int] = set()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._closing = False
        self._thread: threading.Thread | None = None

    # --- from any thread ---------------------------------------------------------------

    def submit(self, request: Generate, sink: Sink) -> None:
        """Queue a request. Raises `RequestError` or `ContextLengthError` at once when it cannot be served."""
        sequence = self._prepare(request, sink)
        with self._changed:
            if self._closing:
                raise RunnerError("the engine is shutting down")
            self._incoming.append(sequence)
            self._changed.notify()

    def cancel(self, request_id: int) -> None:
        """Stop a request before the next step; its sink hears nothing more."""
        with self._changed:
            self._cancelled.add(request_id)
            self._changed.notify()

    def call(self, act: Callable[[], T]) -> Future[T]:
        """Have `act` called between two steps, on the stepping thread, where the cache may be looked at.

        The future has what it returns or raises.
        """
        future: Future[T] = Future()
        with self._changed:
            if self._closing:
                raise RunnerError("the engine is shutting down")
            self._calls.append((future, act))
            self._changed.notify()
        return future

    @property
    def active(self) -> int:
        """Requests running or waiting."""
        return len(self._running) + len(self._queue) + len(self._incoming)

    def start(self) -> None:
        """Step on a thread of its own until `close`."""
        self._thread = threading.Thread(target=self._run, name="puna-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all requests with an error, stop the thread, give the cache back."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._take_incoming()
        for sequence in [*self._running, *self._queue]:
            sequence.sink(_failed(sequence.id, RunnerError("the model was unloaded")))
        self._running.clear()
        self._queue.clear()
        for future, _ in self._calls:
            if future.set_running_or_notify_cancel():
                future.set_exception(RunnerError("the model was unloaded"))
        self._replay.close()
        self.cache.close()

    def _prepare(self, request: Generate, sink: Sink) -> Sequence:
        """Tokenise and check a request; the costly part of it happens on the caller's thread."""
        tokenizer, options = self.loaded.tokenizer, request.options
        tokens = tokenizer.encode(request.prompt) if isinstance(request.prompt, str) else request.prompt
        if not tokens:
            raise RequestError("the prompt is empty: it has no tokens, and the model has no begin token")
        if any(not 0 <= token < tokenizer.vocab_size for token in tokens):
            raise RequestError(f"the prompt has token ids outside the vocabulary of {tokenizer.vocab_size}")
        inputs, truncated = [Input(token) for token in tokens], 0
        keep = len(tokens) if options.num_keep < 0 else options.num_keep + tokenizer.add_bos
        keep = min(keep, self.context - 1)
        if len(inputs) > self.context:
            if not request.truncate:
                raise ContextLengthError(
                    f"the input length exceeds the context length: "
                    f"{len(inputs)} tokens, and num_ctx is {self.context}"
                )
            inputs, truncated = truncate(inputs, self.context, keep)
        longest = _LIMIT_CONTEXTS * self.context
        predict = longest if options.num_predict < 0 else min(options.num_predict, longest)
        sampler = Sampler(options, tokenizer.vocab_size)
        for item in inputs:
            sampler.accept(item.token)
        return Sequence(
            request=request,
            sink=sink,
            prompt=inputs,
            context=self.context,
            limit=predict or None,
            keep=keep,
            sampler=sampler,
            text=TextStream(options.stop),
            truncated=truncated,
        )

    # --- on the stepping thread --------------------------------------------------------

    def _run(self) -> None:
        tidying = False  # idle, with the cache still to be compacted
        while True:
            with self._changed:
                while not (tidying or self._has_work()):
                    self._changed.wait()
                if self._closing:
                    return
            tidying = self.step() or (tidying and self.cache.compact())

    def _has_work(self) -> bool:
        waiting = self._incoming or self._queue or self._running or self._cancelled or self._calls
        return bool(waiting or self._closing)

    def step(self) -> bool:
        """Evaluate one batch and sample from it. False when there was nothing to do."""
        self._make_calls()
        self._take_incoming()
        self._admit()
        self._make_room()
        shares = plan(self._running, self.batch_size, self._first)
        if not shares:
            return False
        self._first = (self._first + 1) % len(self._running)
        sampled = [share.sequence for share in shares if share.complete]
        self.step_started = time.monotonic()
        try:
            logits = self._forward(shares)
        except Exception as error:
            log.exception("a batch of %d sequences failed", len(shares))
            for share in shares:
                self._fail(share.sequence, error)
            return True
        finally:
            self.step_started = None
        for sequence, row in zip(sampled, logits, strict=True):
            # Some files pad the output beyond the vocabulary; what lies there is no token.
            self._decode(sequence, row[: self.loaded.tokenizer.vocab_size])
        return True

    def _make_calls(self) -> None:
        while self._calls:
            future, act = self._calls.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(act())
            except Exception as error:
                future.set_exception(error)

    def _take_incoming(self) -> None:
        with self._changed:
            self._queue.extend(self._incoming)
            self._incoming.clear()
            cancelled, self._cancelled = self._cancelled, set()
        if cancelled:
            self._queue = deque(sequence for sequence in self._queue if sequence.id not in cancelled)
            for sequence in [sequence for sequence in self._running if sequence.id in cancelled]:
                self._leave(sequence)

    def _admit(self) -> None:
        while self._queue:
            found = self.slots.take(self._queue[0].prompt)
            if found is None:
                return
            sequence = self._queue.popleft()
            sequence.start(*found)
            self._running.append(sequence)

    def _make_room(self) -> None:
        """Shift every sequence whose context is full and which is to go on."""
        for sequence in list(self._running):
            slot = sequence.slot
            assert slot is not None
            if len(slot.inputs) + len(sequence.waiting) <= self.context or not sequence.generated:
                continue
            count = shift_count(slot.inputs, self.context, sequence.keep)
            sequence.shifted += count
            begin, end = sequence.keep, sequence.keep + count
            try:
                self.cache.remove(slot.index, begin, end)
                del slot.inputs[begin:end]
            except NotSupportedError:  # evaluate again what is to stay
                kept = [*slot.inputs[:begin], *slot.inputs[end:]]
                self.slots.drop(slot)
                sequence.waiting = kept + sequence.waiting
            except PunaError as error:
                self._fail(sequence, error)

    def _forward(self, shares: list[Share]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        """Logits [complete shares, vocab]; the shares' inputs go from waiting to remembered."""
        batch = assemble(shares)
        self.cache.start_forward(batch)
        try:
            logits = self._replay.forward(batch)
        except BaseException:
            self.cache.undo_forward()
            raise
        for share in shares:
            assert share.sequence.slot is not None
            share.sequence.slot.inputs += share.sequence.waiting[: share.count]
            del share.sequence.waiting[: share.count]
        return logits.numpy()

    def _decode(self, sequence: Sequence, logits: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
        """Sample the next token of `sequence`, show its text, end or go on."""
        try:
            token = sequence.sampler.sample(logits)
            logprob = self._logprob(sequence, logits, token) if sequence.request.logprobs else None
        except GenerationError as error:
            self._fail(sequence, error)
            return
        sequence.sampler.accept(token)
        sequence.sampled()
        if token in self.loaded.tokenizer.eos_ids and not sequence.request.ignore_eos:
            self._finish(sequence, "stop")
            return
        released = sequence.text.feed(Piece(token, self.loaded.tokenizer.piece(token), logprob))
        _show(sequence, released)
        assert sequence.slot is not None
        full = len(sequence.slot.inputs) >= self.context and not sequence.request.shift
        if released.stop is not None:
            self._finish(sequence, "stop", released.stop)
        elif full or (sequence.limit is not None and sequence.generated >= sequence.limit):
            self._finish(sequence, "length")
        else:
            sequence.waiting.append(Input(token))

    def _logprob(
        self, sequence: Sequence, logits: np.ndarray[tuple[int], np.dtype[np.float32]], token: int
    ) -> TokenLogprob:
        chosen, best = log_probabilities(logits, token, sequence.request.top_logprobs)
        tops = []
        for other, value in best:
            data = self.loaded.tokenizer.piece(other)
            tops.append(TopLogprob(data.decode(errors="replace"), value, list(data)))
        data = self.loaded.tokenizer.piece(token)
        return TokenLogprob(data.decode(errors="replace"), chosen, list(data), tops)

    def _finish(self, sequence: Sequence, reason: str, stop: str | None = None) -> None:
        _show(sequence, sequence.text.flush())
        sequence.sink(
            Done(
                id=sequence.id,
                reason=reason,
                prompt_eval_count=len(sequence.prompt),
                prompt_eval_duration=max(1, sequence.first_ns - sequence.admitted_ns),
                eval_count=sequence.generated,
                eval_duration=max(1, sequence.last_ns - sequence.first_ns),
                cached=sequence.cached,
                truncated=sequence.truncated,
                shifted=sequence.shifted,
                stop=stop,
            )
        )
        self._leave(sequence)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        sequence.sink(_failed(sequence.id, error))
        assert sequence.slot is not None
        self.slots.drop(sequence.slot)
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        self.slots.give_back(sequence.slot)
        self._running.remove(sequence)


def _show(sequence: Sequence, released: Released) -> None:
    if released.text or released.pieces:
        sequence.sink(
            Chunk(
                id=sequence.id,
                text=released.text,
                tokens=[piece.token for piece in released.pieces],
                logprobs=[piece.logprob for piece in released.pieces if piece.logprob is not None],
            )
        )


def _failed(request_id: int, error: Exception) -> Failed:
    if not isinstance(error, PunaError):
        error = GenerationError(f"{type(error).__name__}: {error}")
    return Failed.of(request_id, error)
