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
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import accumulate
from typing import TypeVar

import numpy as np
import torch

from puna import ops
from puna.batch import Batch
from puna.engine.answers import Answers, fail
from puna.engine.batching import Share, assemble
from puna.engine.drafting import Drafter
from puna.engine.embedding import Embedding, prepare_embeddings
from puna.engine.events import Embed, Generate
from puna.engine.guesses import Guess
from puna.engine.memories import Memories
from puna.engine.replay import Replay
from puna.engine.requests import prepare
from puna.engine.scheduler import Scheduler
from puna.engine.sequence import Generation, Sequence, Sink
from puna.engine.sizing import build_cache, cache_bytes, choose_sizes
from puna.engine.speculation import Speculation
from puna.errors import GenerationError, RequestError, RunnerError
from puna.kvcache.types import HALVES, KVTypes
from puna.machine import is_out_of_memory, memory_is_short
from puna.model.load import LoadedModel

log = logging.getLogger("puna.engine")

T = TypeVar("T")

Rows = np.ndarray[tuple[int, int], np.dtype[np.float32]]

#: Finished requests that are remembered, beside the running ones, as long as there are cells.
REMEMBERED = 64


class Engine:
    """Runs up to `parallel` sequences of at most `context` tokens each; more requests wait their turn.

    All sequences together, running and up to `remembered` finished ones, hold at most `capacity` tokens
    (by default enough for `parallel` full ones, never less than for one), counting once what they share.
    Without a `context` a sequence may be as long as the model was trained for, as far as memory goes.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        context: int | None,
        parallel: int = 1,
        batch_size: int = 512,
        capacity: int | None = None,
        remembered: int = REMEMBERED,
        cache_types: KVTypes = HALVES,
        speculate: str | None = None,
    ) -> None:
        context, capacity = choose_sizes(
            loaded,
            context=context,
            capacity=capacity,
            parallel=parallel,
            batch=batch_size,
            types=cache_types,
        )
        self.loaded = loaded
        self.context = context
        self.parallel = parallel
        ops.keep_freed_memory()
        self.cache, rows = build_cache(
            loaded,
            parallel=parallel,
            remembered=remembered,
            context=context,
            capacity=capacity,
            batch=batch_size,
            types=cache_types,
        )
        self.weight_bytes = loaded.weight_bytes
        self.cache_bytes = cache_bytes(self.cache, rows, capacity, batch_size)  # that of a draft model too
        self.memories = Memories(self.cache, rows)
        self.step_started: float | None = None  # time.monotonic() of the running step
        self._replay = Replay(loaded.model, self.cache)
        self.scheduler = Scheduler(
            self.cache,
            self.memories,
            context=context,
            parallel=parallel,
            brief=(rows - parallel) // 2,  # the other half stays for conversations
            batch_size=batch_size,
        )
        drafter = None
        if loaded.draft is not None:
            if not self.cache.takes_back:
                raise RequestError(
                    f"{loaded.path.name} cannot use a draft model: its recurrent layers cannot take back "
                    "what was guessed wrong; load it without one"
                )
            drafter = Drafter(
                loaded.draft,
                loaded,
                context=context,
                capacity=capacity,
                parallel=parallel,
                remembered=remembered,
                batch=batch_size,
                cache_types=cache_types,
            )
            self.weight_bytes += loaded.draft.weight_bytes
            self.cache_bytes += drafter.cache_bytes
        self._drafter = drafter
        self._speculation = Speculation(self.cache, context, drafter=drafter, default=speculate)
        self._answers = Answers(loaded.tokenizer, context)
        self._changed = threading.Condition()
        self._incoming: deque[Sequence] = deque()
        self._cancelled: set[int] = set()
        self._asked: deque[Callable[[], None]] = deque()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._on_death: Callable[[BaseException], None] | None = None

    # --- from any thread ---------------------------------------------------------------

    def submit(self, request: Generate | Embed, sink: Sink) -> None:
        """Queue a request. Raises at once when it cannot be served: `RequestError`, `ContextLengthError`,
        `UnavailableError`.
        """
        # The costly part of it happens here, on the caller's thread.
        tokenizer = self.loaded.tokenizer
        sequences: Iterable[Sequence]
        if isinstance(request, Embed):
            sequences = prepare_embeddings(
                request, sink, tokenizer, self.context, self.loaded.pooling, whole=not self.loaded.generates
            )
        elif not self.loaded.generates:
            raise RequestError(f"{self.loaded.path.name} does not generate text; it embeds texts")
        else:
            sequences = generations = prepare(request, sink, tokenizer, self.context)
            self._speculation.equip(generations)
        with self._changed:
            self._refuse_if_closing()
            self._incoming.extend(sequences)
            self._changed.notify()

    def cancel(self, request_id: int) -> None:
        """Stop a request before the next step; its sink hears nothing more."""
        with self._changed:
            self._cancelled.add(request_id)
            self._changed.notify()

    def ask(self, function: Callable[[], T]) -> Future[T]:
        """Call `function` between two steps, on the stepping thread, which alone may touch the cache."""
        future: Future[T] = Future()

        def answer() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)

        with self._changed:
            self._refuse_if_closing()
            self._asked.append(answer)
            self._changed.notify()
        return future

    @property
    def provided_bytes(self) -> int:
        """Memory the caches have until now."""
        return self.cache.provided_bytes + (self._drafter.provided_bytes if self._drafter is not None else 0)

    @property
    def active(self) -> int:
        """Sequences running or waiting."""
        return len(self.scheduler.running) + len(self.scheduler.waiting) + len(self._incoming)

    @property
    def running(self) -> int:
        """Sequences that take part in the steps."""
        return len(self.scheduler.running)

    @property
    def evicted(self) -> int:
        """Cells that finished requests had to give up for others, so far."""
        return self.memories.evicted

    def start(self, on_death: Callable[[BaseException], None] | None = None) -> None:
        """Step on a thread of its own until `close`.

        `on_death` is called there when it cannot go on after an error, or should not: without memory, or when
        the interpreter itself failed, nothing that this process does can be relied on. Without `on_death` it
        goes on as long as it can.
        """
        self._on_death = on_death
        self._thread = threading.Thread(target=self._run_or_die, name="puna-engine", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all requests with an error, stop the thread, give the cache back."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._take_incoming()
        for sequence in list(self.scheduler):
            self._fail(sequence, RunnerError("the model was unloaded"))
        self._replay.close()
        self._speculation.close()
        self.cache.close()

    def _refuse_if_closing(self) -> None:
        if self._closing:
            raise RunnerError("the engine is shutting down")

    # --- on the stepping thread --------------------------------------------------------

    def _run_or_die(self) -> None:
        ops.leave_cores_to_kernels()
        try:
            self._run()
        except BaseException as error:
            if self._on_death is None:
                raise
            self._on_death(error)

    def _in_doubt(self, error: Exception) -> bool:
        """Whether this process had better end, where it can."""
        lost = isinstance(error, SystemError) or (is_out_of_memory(error) and memory_is_short())
        return lost and self._on_death is not None

    def _run(self) -> None:
        tidying = False  # idle, with the cache still to be compacted
        while True:
            with self._changed:
                while not (tidying or self._has_work()):
                    self._changed.wait()
                if self._closing:
                    return
            try:
                tidying = self.step() or (tidying and self.cache.compact())
            except Exception as error:  # a defect, but nobody must wait for ever because of it
                log.exception("a step failed")
                for sequence in list(self.scheduler):
                    self._fail(sequence, error)
                if self._in_doubt(error):
                    raise

    def _has_work(self) -> bool:
        return bool(self.active or self._cancelled or self._asked or self._closing)

    def step(self) -> bool:
        """Evaluate one batch and sample from it. False when there was nothing to do."""
        self._take_incoming()
        shares = self.scheduler.schedule()
        if not shares:
            return False
        streams = sum(share.sequence.decoding for share in shares)
        rows = sum(share.count for share in shares)
        self._speculation.guess(shares, self.memories.room)
        self.step_started = time.monotonic()
        try:
            whole = self._evaluate(shares)
            if whole and not any(share.guess.tokens for share in shares):
                self.scheduler.pace.measured(streams, rows - streams, time.monotonic() - self.step_started)
        finally:
            self.step_started = None
        return True

    def _take_incoming(self) -> None:
        with self._changed:
            incoming, self._incoming = self._incoming, deque()
            cancelled, self._cancelled = self._cancelled, set()
            asked, self._asked = self._asked, deque()
        for sequence in incoming:
            self.scheduler.add(sequence)
        if cancelled:
            for sequence in [sequence for sequence in self.scheduler if sequence.id in cancelled]:
                self.scheduler.leave(sequence)
        for answer in asked:
            answer()

    def _evaluate(self, shares: list[Share]) -> bool:
        """Forward and sample. When that fails, one by one, so that it fails only for whom it must."""
        wanted = [(share.sequence, share.sequence.evaluated, share.complete, share.guess) for share in shares]
        began = time.monotonic()
        try:
            results = self._forward(shares)
        except Exception as error:
            if self._in_doubt(error):
                raise
            log.exception("a batch of %d sequences failed", len(shares))
            if len(shares) == 1 and not shares[0].guess.tokens:
                self._fail(shares[0].sequence, error)
            else:
                for share in shares:
                    share.guess = Guess()
                    self._evaluate([share])
            return False
        self._speculation.measured(shares, time.monotonic() - began)
        self.scheduler.evaluated(shares)
        for (sequence, begin, complete, guess), result in zip(wanted, results, strict=True):
            self._answer(sequence, begin, result, complete, guess)
        return True

    def _forward(self, shares: list[Share]) -> list[Rows]:
        """Of the wanted rows of each share logits [rows, vocab], or hidden states [rows, hidden] to embed."""
        batch = assemble(shares)
        self.cache.start_forward(batch)
        try:
            return self._results(batch, shares)
        except BaseException:
            self.cache.undo_forward()
            raise

    def _results(self, batch: Batch, shares: list[Share]) -> list[Rows]:
        counts = [len(share.outputs) for share in shares]
        embeds = [isinstance(share.sequence, Embedding) for share in shares]
        # Some files pad the output beyond the vocabulary; what lies there is no token.
        vocab = self.loaded.tokenizer.vocab_size
        if not any(embeds):
            return _split(self._replay.forward(batch).numpy()[:, :vocab], counts)
        with torch.inference_mode():
            hidden = self.loaded.model.hidden(batch, self.cache)
            if all(embeds):
                return _split(hidden.numpy(), counts)
            logits = self.loaded.model.logits(hidden[torch.from_numpy(~np.repeat(embeds, counts))])
        predicting = [0 if embed else count for embed, count in zip(embeds, counts, strict=True)]
        states, predictions = _split(hidden.numpy(), counts), _split(logits.numpy()[:, :vocab], predicting)
        return [
            state if embed else prediction
            for embed, state, prediction in zip(embeds, states, predictions, strict=True)
        ]

    def _answer(self, sequence: Sequence, begin: int, result: Rows, complete: bool, guess: Guess) -> None:
        """What follows from what `_forward` gave of a share of inputs from `begin` on, and of its guesses."""
        token = None
        try:
            match sequence:
                case Embedding():
                    sequence.take(result)
                    if complete:
                        sequence.finish()
                case Generation():
                    if sequence.scoring:
                        self._answers.score(sequence, begin, result)
                    if complete:
                        token = self._answers.decode(sequence, result[-1 - len(guess.tokens)])
                    if guess.tokens:
                        token = self._go_on(sequence, token, guess, result[-len(guess.tokens) :])
        except Exception as error:  # which concerns nobody else
            if not isinstance(error, GenerationError):
                log.exception("request %d failed after its pass", sequence.id)
            self._fail(sequence, error)
            return
        if not complete:
            return
        if token is None:
            self.scheduler.leave(sequence)
        else:
            self.scheduler.append(sequence, token)

    def _go_on(self, sequence: Generation, token: int | None, guess: Guess, logits: Rows) -> int | None:
        """Sample on after `token` as long as guesses come true; `logits` are those after each guess.

        Returns the last token, or None when the sequence has ended.
        """
        accepted = 0
        while token is not None and accepted < len(guess.tokens) and token == guess.tokens[accepted]:
            self.scheduler.append(sequence, token)
            self.scheduler.confirm(sequence)
            token = self._answers.decode(sequence, logits[accepted])
            accepted += 1
        self.scheduler.take_back(sequence)
        self._speculation.judge(sequence, guess, accepted, ended=token is None)
        return token

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        """End a sequence with an error; what it evaluated is in doubt."""
        self.scheduler.leave(sequence, forget=True)
        try:
            fail(sequence, error)
        except Exception:  # a sink that raises is its request's fault, not that of all others
            log.exception("nobody could be told that request %d failed", sequence.id)


def _split(rows: Rows, counts: list[int]) -> list[Rows]:
    """`rows` in parts of so many, one after another."""
    ends = list(accumulate(counts))
    return [rows[end - count : end] for end, count in zip(ends, counts, strict=True)]
