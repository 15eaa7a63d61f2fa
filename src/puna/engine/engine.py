"""The engine: many sequences, one model, one step at a time.

Any thread may call `submit` and `cancel`; one thread, run by `start`, calls `step` in a loop. Sinks get their
events on the stepping thread, so they must return quickly.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from puna.engine.answers import Answers, Drawn, draw, fail
from puna.engine.batching import BatchSlice, Draft, StepLoad, constraints
from puna.engine.drafting.draft_model import DraftModel, attach_draft
from puna.engine.drafting.speculation import Speculation, drafter_for
from puna.engine.executor import Executor, Rows
from puna.engine.images import Encoding, Images
from puna.engine.live import live_state
from puna.engine.prefix_cache import PrefixCache
from puna.engine.prefix_reports import PrefixReports
from puna.engine.prompt_memory import PromptMemory, prompt_folder
from puna.engine.requests import FittedPrompt, prompt_blocks, sequences_of
from puna.engine.room import EngineSizes, Room, choose_sizes
from puna.engine.scheduler import Scheduler, StepClock
from puna.engine.sequence import EmbeddingInput, Generation, Sequence, Sink
from puna.errors import (
    CacheFileError,
    CacheFullError,
    ContextLengthError,
    GenerationError,
    ModelLostError,
    RunnerError,
)
from puna.gguf import fingerprint
from puna.grammar.compiler.client import Compiler, RemoteConstraint, wait
from puna.kvcache.cache import Compacting, Saving
from puna.kvcache.saved import read_sequence, write_sequence
from puna.machine import is_out_of_memory, memory_is_short
from puna.model.load import LoadedModel
from puna.protocol import Embed, Generate, LiveState

log = logging.getLogger("puna.engine")

T = TypeVar("T")

#: How long a step waits, after its pass, for formats to compute the allowed tokens. Answers with slower
#: formats are held: they leave the batch.
_MASK_PATIENCE_S: Final = 0.01
#: How long an engine with only held answers waits for one of them before it looks for new requests.
_HELD_LOOK_S: Final = 0.02

#: Requests whose thinking is to end as soon as they arrive.
_MAX_FINISHING: Final = 64

#: How long `close` waits for prompts to be saved.
_SAVING_S: Final = 3.0


class Engine:
    """Runs sequences of a loaded model within `sizes`; further requests are queued.

    A context or capacity that `sizes` leave open is chosen by `choose_sizes`. If `growable`, the context can
    be raised later, by `grow`. `speculate` is the drafting mode of requests that name none.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        sizes: EngineSizes,
        *,
        speculate: str | None = None,
        growable: bool = False,
    ) -> None:
        attach_draft(loaded)
        sizes = replace(sizes, batch_size=sizes.batch_size * loaded.ops.batch_scale)
        sizes = choose_sizes(loaded, sizes)
        self.images: Images | None = None
        self._windows: Encoding | None = None  # of recordings
        if loaded.vision is not None or loaded.audio is not None:
            self.images = Images(loaded.vision, sizes.batch_size, audio_tower=loaded.audio)
        elif loaded.speech_encoder is not None:
            self._windows = Encoding([loaded.speech_encoder], sizes.batch_size)
        if loaded.vision is not None:
            sizes = replace(sizes, batch_size=max(sizes.batch_size, loaded.vision.largest_group))
        self.loaded = loaded
        self.context = sizes.context
        self.parallel = sizes.parallel
        loaded.ops.keep_freed_memory()
        self.room = Room(loaded, sizes, growable=growable)
        self.cache, rows = self.room.build_cache()
        self.weight_bytes = loaded.weight_bytes
        self.cache_bytes = self.room.cache_bytes  # includes the draft model's
        self.prefix_cache = PrefixCache(self.cache, rows)
        self.prefix_reports = PrefixReports(self.prefix_cache)  # for the stepping thread
        self.step_started: float | None = None  # time.monotonic() of the running step
        self.clock = StepClock()
        self.scheduler = Scheduler(
            self.cache,
            self.prefix_cache,
            context=self.room.max_context,
            parallel=sizes.parallel,
            prompt_only_slots=(rows - sizes.parallel) // 2,  # the other half is for conversations
            batch_size=sizes.batch_size,
        )
        longest = replace(sizes, context=self.room.max_context)
        self._drafter, kept = drafter_for(loaded, self.cache, longest, speculate)
        if loaded.draft is not None:
            self.weight_bytes += loaded.draft.weight_bytes
        if isinstance(self._drafter, DraftModel):
            self.cache_bytes += self._drafter.cache_bytes
        self._executor = Executor(loaded, self.cache, kept)
        self._speculation = Speculation(
            self.cache, self.room.max_context, drafter=self._drafter, default=speculate
        )
        self.compiler = Compiler(loaded.path)
        self._answers = Answers(loaded.tokenizer, self.room.max_context, loaded.ops)
        self._changed = threading.Condition()
        self._incoming: deque[Sequence] = deque()
        self._cancelled: set[int] = set()
        self._finishing: deque[int] = deque(maxlen=_MAX_FINISHING)
        self._asked: deque[Callable[[], None]] = deque()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._on_death: Callable[[BaseException], None] | None = None
        self._memory: PromptMemory | None = None
        self._stored = str(sizes.cache_types)

    # --- from any thread ---------------------------------------------------------------

    def submit(self, request: Generate | Embed, sink: Sink, prompt: FittedPrompt | None = None) -> None:
        """Queue a request; `prompt` is its rendered prompt if that is a chat.

        Raises `RequestError`, `ContextLengthError` or `UnavailableError` when it cannot be served.
        """
        # The costly parts happen here, on the caller's thread.
        context = self.room.context_of(request)
        sequences = sequences_of(request, sink, self.loaded, context, self.compiler, prompt)
        self._speculation.enable([each for each in sequences if isinstance(each, Generation)])
        if self._memory is not None:
            self._memory.recall(sequences)
        with self._changed:
            self._refuse_if_closing()
            self._incoming.extend(sequences)
            self._changed.notify()

    def prompt_blocks(self, request: Generate, prompt: FittedPrompt) -> list[int]:
        """Return the digests of the blocks of a prompt. Raises as `submit`."""
        return prompt_blocks(request, prompt, self.loaded, self.room.context_of(request))

    def cancel(self, request_id: int) -> None:
        """Stop a request before the next step; its sink gets no further events."""
        self.compiler.cancel(request_id)
        with self._changed:
            self._cancelled.add(request_id)
            self._changed.notify()

    def finish_thinking(self, request_id: int) -> None:
        """End the thinking of a request before the next step, also if it is still on its way here."""
        with self._changed:
            self._finishing.append(request_id)
            self._changed.notify()

    def ask(self, function: Callable[[], T]) -> Future[T]:
        """Call `function` between steps on the stepping thread, the only one that may use the cache."""
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

    def grow(self, context: int, reserved: int = 0) -> None:
        """Raise the maximum length of sequences to `context` (see `Room.grow`); only between steps."""
        self.cache_bytes += self.room.grow(context, self.cache.provided_bytes, reserved)
        self.context = self.room.context

    @property
    def provided_bytes(self) -> int:
        """Bytes of memory the caches take so far."""
        beside = self._drafter.provided_bytes if self._drafter is not None else 0
        return self.cache.provided_bytes + beside

    @property
    def active(self) -> int:
        """Number of sequences running or waiting."""
        return len(self.scheduler.running) + len(self.scheduler.waiting) + len(self._incoming)

    @property
    def running(self) -> int:
        """Number of sequences that take part in steps."""
        return len(self.scheduler.running)

    def live_state(self) -> LiveState:
        """Return what the engine is doing; only between steps."""
        return live_state(self.clock, self.scheduler, self.cache, self.prefix_cache)

    def save_prompt(self, tokens: list[int], path: str | Path) -> None:
        """Write the cached state of the prompt `tokens`, whose request has just ended, to `path`.

        Raises `CacheFullError` when it was already evicted, and `OSError`.
        """
        saved = self.ask(partial(self.prefix_cache.snapshot, tokens)).result()
        if saved is None:
            raise CacheFullError("other requests evicted this prompt at once; try again later")
        write_sequence(saved, path, model=fingerprint(self.loaded.path), tokens=tokens)

    def load_prompt(self, path: str | Path) -> list[int]:
        """Add a prompt written by `save_prompt` to the prefix cache, and return its tokens.

        Raises `CacheFileError`, `ContextLengthError`, `CacheFullError`, `FileNotFoundError`.
        """
        saved, tokens = read_sequence(path, model=fingerprint(self.loaded.path))
        vocabulary = self.loaded.tokenizer.vocab_size
        if not tokens or not all(0 <= token < vocabulary for token in tokens):
            raise CacheFileError(
                f"{path}: these are not tokens of a vocabulary of {vocabulary}; the file is damaged"
            )
        if len(tokens) > self.context:
            raise ContextLengthError(
                f"{path}: this has {len(tokens)} tokens, and num_ctx is {self.context}; "
                "load the model with a larger one"
            )
        try:
            self.ask(partial(self.prefix_cache.restore, saved, tokens)).result()
        except CacheFileError as error:
            raise CacheFileError(f"{path}: {error}") from None
        return tokens

    @property
    def evicted(self) -> int:
        """Number of cells of finished requests evicted so far."""
        return self.prefix_cache.evicted

    def start(self, on_death: Callable[[BaseException], None] | None = None) -> None:
        """Run steps on a thread until `close`.

        `on_death` is called on that thread after an error that the process should not survive: out of memory,
        or with a failed interpreter, its results cannot be trusted, and without a part of the model there are
        none. Without `on_death` the engine goes on as long as it can. With `PUNA_PROMPT_CACHE`, prompts in
        the prefix cache are saved to disk.
        """
        self._on_death = on_death
        if (folder := prompt_folder()) is not None and isinstance(self.cache, Saving):
            self._memory = PromptMemory(
                folder, self.loaded, self.cache, self.prefix_cache, self.ask, settings=self._stored
            )
            self.scheduler.on_release = self._memory.released
        self._thread = threading.Thread(target=self._run_or_die, name="puna-engine", daemon=True)
        self._thread.start()

    def save_prompts(self, timeout_s: float) -> None:
        """Save prompts that are not on disk yet, for at most `timeout_s`."""
        if self._memory is not None:
            self._memory.close(timeout_s)

    def close(self) -> None:
        """End all requests with an error, stop the thread and free the cache."""
        self.save_prompts(_SAVING_S)
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._take_incoming()
        for sequence in list(self.scheduler):
            self._fail(sequence, RunnerError("the model was unloaded"))
        self._executor.close()
        self.compiler.close()
        self._speculation.close()
        if (encoding := self._encoding) is not None:
            encoding.close()
        self.cache.close()

    def _refuse_if_closing(self) -> None:
        if self._closing:
            raise RunnerError("the engine is shutting down")

    # --- on the stepping thread --------------------------------------------------------

    def _run_or_die(self) -> None:
        try:
            self._run()
        except BaseException as error:
            if self._on_death is None:
                raise
            self._on_death(error)

    def _is_fatal(self, error: Exception) -> bool:
        """Whether the process should end, and `on_death` can end it."""
        lost = (
            isinstance(error, SystemError | ModelLostError)
            or self.loaded.ops.is_lost(error)
            or (is_out_of_memory(error) and memory_is_short())
        )
        return lost and self._on_death is not None

    def _run(self) -> None:
        tidying = False  # idle, with a cache that is not compact yet
        while True:
            with self._changed:
                while not (tidying or self._has_work()):
                    self._changed.wait()
                if self._closing:
                    return
            try:
                tidying = self.step() or (tidying and self._compact())
            except Exception as error:  # a defect, which must not leave requests waiting for ever
                log.exception("a step failed")
                for sequence in list(self.scheduler):
                    self._fail(sequence, error)
                if self._is_fatal(error):
                    raise

    def _compact(self) -> bool:
        return isinstance(self.cache, Compacting) and self.cache.compact()

    def _has_work(self) -> bool:
        return bool(self.active or self._cancelled or self._asked or self._closing)

    def step(self) -> bool:
        """Schedule, execute, update; return whether there was anything to do."""
        self._take_incoming()
        self._resume_held()
        slices = self.scheduler.schedule()
        if (encoding := self._encoding) is not None and self._encode(encoding, slices):
            slices = [each for each in slices if each.sequence.entry is not None]  # others may have failed
            if not slices:
                return True
        elif not slices:
            waited_for = self._waited_for
            with self.clock.spending("mask_s"):
                wait(waited_for, _HELD_LOOK_S)
            return bool(waited_for)
        with self.clock.spending("draft_s"):
            if not self._speculation.repeat(slices, self.scheduler.pace, self.prefix_cache.room):
                self._speculation.propose(slices, self.prefix_cache.room)
        load, self.step_started = StepLoad.of(slices), time.monotonic()
        try:
            if self._run_batch(slices):
                self.clock.passed(load, self._executor.seconds)
                self._speculation.measured(load, self._executor.seconds)
                self.scheduler.pace.measured(load, time.monotonic() - self.step_started)
        finally:
            self.step_started = None
        return True

    @property
    def _encoding(self) -> Encoding | None:
        return self._windows if self.images is None else self.images

    def _encode(self, images: Encoding, slices: list[BatchSlice]) -> bool:
        """Encode a part of the next image of a running sequence; return whether there is one."""
        running = self.scheduler.in_order
        self.step_started = time.monotonic()
        try:
            with self.clock.spending("image_s"):
                return images.encode(running, self.scheduler.pace.patience_s(StepLoad.of(slices)))
        except Exception as error:
            if self._is_fatal(error):
                raise
            log.exception("an image could not be encoded")
            for sequence in running:
                if (unread := sequence.unread) is not None and unread.image is images.failed:
                    self._fail(sequence, error)
            return True
        finally:
            self.step_started = None

    def _take_incoming(self) -> None:
        with self._changed:
            incoming, self._incoming = self._incoming, deque()
            cancelled, self._cancelled = self._cancelled, set()
            asked, self._asked = self._asked, deque()
            finishing = set(self._finishing)
        for sequence in incoming:
            self.scheduler.add(sequence)
        if finishing:
            self._finish_thinking(finishing)
        if cancelled:
            for sequence in [sequence for sequence in self.scheduler if sequence.id in cancelled]:
                self.scheduler.leave(sequence)
        for answer in asked:
            answer()

    def _finish_thinking(self, finishing: set[int]) -> None:
        """End the thinking of those of the requests `finishing` that have arrived."""
        found = [each for each in self.scheduler if each.id in finishing and isinstance(each, Generation)]
        for sequence in found:
            sequence.thinking.finish()
        arrived = {sequence.id for sequence in found}
        with self._changed:
            left = [request_id for request_id in self._finishing if request_id not in arrived]
            self._finishing = deque(left, maxlen=_MAX_FINISHING)

    def _run_batch(self, slices: list[BatchSlice]) -> bool:
        """Execute a batch and update its sequences; return False if it failed and was retried in parts."""
        try:
            for constraint, drafts in constraints(slices):
                constraint.prepare(drafts)  # while the pass runs
            results = self._executor.execute(slices)
        except Exception as error:
            if self._is_fatal(error):
                raise
            log.exception("a batch of %d sequences failed", len(slices))
            self._retry(slices, error)
            return False
        self.scheduler.evaluated(slices)
        self._speculation.observe(slices)
        tokens = self._drawn(slices, results)
        with self.clock.spending("other_s"):
            for batch_slice, result in zip(slices, results, strict=True):
                self._update(batch_slice, result, tokens.get(batch_slice.sequence))
        return True

    def _drawn(self, slices: list[BatchSlice], results: Items[Rows]) -> dict[Sequence, Drawn]:
        """Draw the next token of each fully evaluated sequence, from the row before its draft."""
        wanted = [
            (batch_slice.sequence, logits[len(logits) - 1 - len(batch_slice.draft.tokens)])
            for batch_slice, logits in zip(slices, results, strict=True)
            if isinstance(batch_slice.sequence, Generation)
            and batch_slice.complete
            and batch_slice.sequence.limit
        ]
        deadline = time.monotonic() + _MASK_PATIENCE_S
        if formats := [sequence.constraint for sequence, _ in wanted if sequence.constraint is not None]:
            with self.clock.spending("mask_s"):
                wait(formats, _MASK_PATIENCE_S)
        with self.clock.spending("sample_s"):
            drawn = draw(wanted, max(deadline - time.monotonic(), 0))
        return dict(zip((sequence for sequence, _ in wanted), drawn, strict=True))

    @property
    def _held(self) -> list[tuple[Generation, Rows]]:
        """Sequences that wait for their formats, with the logits [1, vocab] to draw from."""
        return [
            (sequence, sequence.held)
            for sequence in self.scheduler.running
            if isinstance(sequence, Generation) and sequence.held is not None
        ]

    @property
    def _waited_for(self) -> list[RemoteConstraint]:
        """Formats that held sequences wait for."""
        return [sequence.constraint for sequence, _ in self._held if sequence.constraint is not None]

    def _resume_held(self) -> None:
        """Draw for held sequences whose formats have computed the allowed tokens."""
        if not (held := self._held):
            return
        wait(self._waited_for, 0)
        ready = [
            (sequence, logits)
            for sequence, logits in held
            if sequence.constraint is None or sequence.constraint.ready
        ]
        found = draw([(sequence, logits[0]) for sequence, logits in ready], 0)
        for (sequence, logits), drawn in zip(ready, found, strict=True):
            if drawn is None:
                continue
            sequence.held = None
            try:
                self._decode(sequence, Draft(), logits, drawn)
            except Exception as error:  # other sequences are not affected
                self._fail_after_pass(sequence, error)

    def _retry(self, slices: list[BatchSlice], error: Exception) -> None:
        """Run the slices of a failed batch one at a time, without drafts, so that only faulty ones fail.

        A prompt for which memory is short is read in smaller steps.
        """
        if len(slices) == 1 and not slices[0].draft.tokens:
            rows = slices[0].rows
            if is_out_of_memory(error) and (most := self.scheduler.pace.shrink(rows)):
                log.warning("memory is short: steps have at most %d rows from now on", most)
            else:
                self._fail(slices[0].sequence, error)
            return
        for batch_slice in slices:
            batch_slice.draft = Draft()
            self._run_batch([batch_slice])

    def _update(self, batch_slice: BatchSlice, result: Rows, drawn: Drawn) -> None:
        """Advance a sequence by the results of its slice: a `drawn` token, scores, or part of a vector."""
        sequence = batch_slice.sequence
        try:
            match sequence:
                case EmbeddingInput():
                    sequence.take(result)
                    if batch_slice.complete:
                        sequence.finish()
                        self._leave(sequence)
                case Generation():
                    self._answers.evaluated(sequence, batch_slice.begin, result)
                    if not batch_slice.complete:
                        return
                    if sequence.limit:
                        first = len(result) - 1 - len(batch_slice.draft.tokens)
                        self._decode(sequence, batch_slice.draft, result[first:], drawn)
                    else:
                        self._answers.finish_empty(sequence)
                        self._leave(sequence)
        except Exception as error:  # other sequences are not affected
            self._fail_after_pass(sequence, error)

    def _decode(self, sequence: Generation, draft: Draft, logits: Rows, drawn: Drawn) -> None:
        """Append the `drawn` token, and draw more while the draft is right.

        `logits` [1 + drafted, vocab] follow the newest input and each draft token. If no token can be drawn
        yet, the sequence is held, and the rest of its draft is dropped.
        """
        token, accepted = None, 0
        while drawn is not None:
            if isinstance(drawn, Exception):
                raise drawn
            self.clock.totals.tokens += sequence.known is None
            token = self._answers.decode(sequence, logits[accepted], drawn)
            if token is None or accepted == len(draft.tokens) or token != draft.tokens[accepted]:
                break
            self.scheduler.append(sequence, token)
            self.scheduler.accept_draft(sequence, draft)
            accepted += 1
            [drawn] = draw([(sequence, logits[accepted])], _MASK_PATIENCE_S)
        if draft.tokens:
            self.scheduler.roll_back(sequence)
        if draft.tokens and not draft.known:
            self.clock.totals.accepted += accepted
            over = token is None or drawn is None
            self._speculation.record_outcome(sequence, draft, accepted, ended=over)
        if drawn is None:
            sequence.held = self.loaded.ops.concatenate([logits[accepted : accepted + 1]])  # a copy
        elif token is None:
            self._leave(sequence)
        else:
            self.scheduler.append(sequence, token)

    def _leave(self, sequence: Sequence) -> None:
        self._speculation.leave(sequence)
        self.scheduler.leave(sequence)

    def _fail_after_pass(self, sequence: Sequence, error: Exception) -> None:
        if not isinstance(error, GenerationError):
            log.exception("request %d failed after its pass", sequence.id)
        self._fail(sequence, error)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        """End a sequence with an error, and forget its cached inputs."""
        self.scheduler.leave(sequence, forget=True)
        try:
            fail(sequence, error)
        except Exception:  # a failing sink must not affect other requests
            log.exception("the failure of request %d could not be reported", sequence.id)
