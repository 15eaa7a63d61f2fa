"""The server's side of a runner process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import msgspec

from puna.errors import InsufficientMemoryError, PunaError, RunnerError, SlowClientError
from puna.kvcache.contents import Contents
from puna.protocol import (
    Cancel,
    Chunk,
    Detokenize,
    Detokenized,
    Done,
    Embed,
    Embedded,
    Evaluated,
    Failed,
    FinishThinking,
    FromRunner,
    Generate,
    Grow,
    Grown,
    Heard,
    Inspect,
    Inspected,
    LiveState,
    Load,
    Loaded,
    LoadingProgress,
    Ping,
    Pong,
    PrefixReport,
    Prompted,
    Refused,
    Render,
    ReportPrefixes,
    Scored,
    Segment,
    Tokenize,
    Tokenized,
    Transcribe,
    Transcribed,
    Unpacker,
    Watch,
    Watched,
    WireMessage,
    pack,
)
from puna.runner.spawned import SpawnedProcess

_Receive = Callable[[], Coroutine[None, None, FromRunner]]

#: Maximum unread chunks of an answer. The engine never waits for a client, so slots and cells become free for
#: others sooner.
MAX_UNREAD = 1024
#: Messages passed on before those who wait for them get to run. What a network held up comes at once.
_IN_A_ROW: Final = MAX_UNREAD // 4
#: How long a process may take to end by itself.
_CLOSE_TIMEOUT_S = 5.0
#: How long to wait for a process whose connection broke, since it is about to end.
_BROKEN_TIMEOUT_S = 1.0

#: Window of the speed, in seconds.
_SPEED_WINDOW_S = 10.0


class Tally:
    """Sums over all requests of one runner. Its clock runs only while a request is generating."""

    def __init__(self) -> None:
        self.finished = 0  # requests
        self.prompt_tokens = 0  # of finished requests
        self.cached_tokens = 0  # prompt tokens from the cache
        self.generated_tokens = 0
        self._generating = 0  # requests after their first token
        self._since_s = 0.0  # when the clock last started
        self._clock_s = 0.0  # its time when it last stopped
        self._recent: deque[tuple[float, int]] = deque()  # time on the clock, tokens

    @property
    def tokens_per_second(self) -> float:
        """Recent speed of all requests together while any was generating; 0 before the first."""
        now_s = self._now_s()
        self._forget(now_s)
        span_s = min(now_s, _SPEED_WINDOW_S)
        return sum(count for _, count in self._recent) / span_s if span_s > 0 else 0.0

    def count(self, tokens: int) -> None:
        """Count the tokens of a chunk."""
        self._add(tokens)

    def finish(self, done: Done, counted: int) -> None:
        """Count a finished sample; chunks, which never include the end token, had `counted` of its tokens.

        Tokens that were only repeated count nowhere.
        """
        if done.sample == 0:  # the prompt of all samples counts once
            self.finished += 1
            self.prompt_tokens += done.prompt_eval_count
            self.cached_tokens += done.cached
        self._add(done.eval_count - max(counted, done.resumed))

    def embedded(self, events: Sequence[Embedded]) -> None:
        """Count a finished request to embed."""
        self.finished += 1
        self.prompt_tokens += sum(event.prompt_eval_count for event in events)
        self.cached_tokens += sum(event.cached for event in events)

    def transcribed(self, event: Transcribed) -> None:
        """Count a finished transcription."""
        self.finished += 1
        self.prompt_tokens += event.prompt_eval_count
        self.generated_tokens += event.eval_count

    def began(self) -> None:
        """Note the first token of a request, whose time counts as its prompt's."""
        if self._generating == 0:
            self._since_s = time.monotonic()
        self._generating += 1

    def ended(self) -> None:
        """Note the end, for whatever reason, of a request that had its first token."""
        if self._generating == 1:
            self._clock_s = self._now_s()
        self._generating -= 1

    def _add(self, tokens: int) -> None:
        self.generated_tokens += tokens
        if self._generating and tokens:
            now_s = self._now_s()
            self._recent.append((now_s, tokens))
            self._forget(now_s)

    def _now_s(self) -> float:
        return self._clock_s + (time.monotonic() - self._since_s if self._generating else 0.0)

    def _forget(self, now_s: float) -> None:
        while self._recent and self._recent[0][0] < now_s - _SPEED_WINDOW_S:
            self._recent.popleft()


#: Called with the bytes of weights in place and in total.
ProgressCallback = Callable[[int, int], None]


class Process(Protocol):
    """The process of a runner, on this machine or another one."""

    @property
    def memory_bytes(self) -> int:
        """The memory it takes now."""

    @property
    def running(self) -> bool:
        """Whether it has not ended, as far as is known."""

    @property
    def last_line(self) -> str:
        """The newest line of its error output; empty before the first."""

    def note(self, line: str) -> None:
        """Add a line to its error output."""

    def kill(self, reason: str) -> None:
        """Kill it; `reason` is why it died."""

    def end(self) -> None:
        """Kill it without a reason of ours."""

    async def ended(self, patience_s: float) -> None:
        """Wait for its end; kill it after `patience_s`."""

    async def last_words(self) -> None:
        """Wait until the output of a process that has ended is complete."""

    async def close(self) -> None:
        """Release everything of a process that has ended."""

    def death(self, *, loaded: bool) -> RunnerError:
        """Return why it ended; `loaded` if it had a model."""


class RunnerClient:
    """The server's side of a connection to a runner process. Only one event loop may use it."""

    def __init__(self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.info = Loaded(context_length=0, parallel=1, weight_bytes=0, cache_bytes=0)
        self.tally = Tally()
        self._process = process
        self._writer = writer
        self._ids = itertools.count(1)
        self._replies: dict[int, asyncio.Queue[FromRunner | None]] = {0: asyncio.Queue()}
        self._overrun: set[int] = set()  # requests dropped because their answers are not read
        self._gone = False
        self._reading = asyncio.create_task(self._read(reader))

    async def load(
        self,
        load: Load,
        on_progress: ProgressCallback | None = None,
        *,
        stall_timeout_s: float | None = 300.0,
    ) -> None:
        """Load the model, and return when it is ready.

        `on_progress` is called with (bytes done, bytes in total). Raises the error that the runner reported
        (a missing or damaged file, an unsupported model), or `RunnerError` when the process died or made no
        progress for `stall_timeout_s` (None: wait forever). After `InsufficientMemoryError` another load may
        be tried; after other errors, close the process.
        """
        self._send(load)
        done, total = 0, 0
        while True:
            try:
                async with asyncio.timeout(stall_timeout_s):
                    message = await self._receive(0)
            except TimeoutError:
                share = done / total if total else 0.0
                raise RunnerError(
                    f"timed out waiting for the model runner to start - progress {share:.2f}"
                    + (f" - {line}" if (line := self._process.last_line) else "")
                ) from None
            match message:
                case LoadingProgress():
                    done, total = message.done, message.total
                    if on_progress is not None:
                        on_progress(done, total)
                case Loaded():
                    self.info = message
                    return
                case Refused():
                    raise InsufficientMemoryError(message.message, message.needed, message.available)

    @property
    def memory_bytes(self) -> int:
        """Memory of the process in bytes."""
        return self._process.memory_bytes

    @property
    def alive(self) -> bool:
        """Whether the process runs and its connection is open."""
        return not self._gone and self._process.running

    async def generate(
        self, request: Generate, on_sent: Callable[[Callable[[], None]], None] | None = None
    ) -> AsyncGenerator[Prompted | Evaluated | Scored | Chunk | Done, None]:
        """Yield the events of `request` (its `id` is set here), including a `Done` for each sample.

        `on_sent` is called once with a function that ends the request's thinking.
        Raises the request's error, or `RunnerError` when the process dies; an error in one sample ends all.
        Closing the iterator early, or cancelling the task in it, stops the generation within one step.
        """
        request = msgspec.structs.replace(request, id=next(self._ids))
        left, began, counted = request.samples, False, [0] * request.samples
        repeated = [len(tokens) for tokens in request.resumed] + counted
        async with self._exchange(request) as receive:
            if on_sent is not None:
                on_sent(partial(self._finish_thinking, request.id))
            try:
                while left:
                    message = await receive()
                    if isinstance(message, Chunk):
                        before = max(counted[message.sample], repeated[message.sample])
                        counted[message.sample] += len(message.tokens)
                        self.tally.count(max(counted[message.sample] - before, 0))
                        if not began:
                            self.tally.began()
                            began = True
                    elif isinstance(message, Done):
                        self.tally.finish(message, counted[message.sample])
                        left -= 1
                    if isinstance(message, Prompted | Evaluated | Scored | Chunk | Done):
                        yield message
            except PunaError:
                left -= 1
                raise
            finally:
                if began:
                    self.tally.ended()
                if left:
                    self._send(Cancel(id=request.id))

    def _finish_thinking(self, request_id: int) -> None:
        if request_id in self._replies:
            self._send(FinishThinking(id=request_id))

    async def embed(self, request: Embed) -> list[Embedded]:
        """Return the vectors of the inputs of `request` in order; its `id` is set here.

        Raises the error of the first input that fails, or `RunnerError` when the process dies. In both cases,
        and when the calling task is cancelled, the other inputs are stopped.
        """
        request = msgspec.structs.replace(request, id=next(self._ids))
        found: list[Embedded] = []
        async with self._exchange(request) as receive:
            try:
                while len(found) < len(request.inputs):
                    message = await receive()
                    assert isinstance(message, Embedded)
                    found.append(message)
            finally:
                if len(found) < len(request.inputs):
                    self._send(Cancel(id=request.id))
        self.tally.embedded(found)
        return sorted(found, key=lambda event: event.sample)

    async def transcribe(self, request: Transcribe) -> AsyncGenerator[Heard | Segment | Transcribed, None]:
        """Yield the events of `request` (its `id` is set here), `Transcribed` last.

        Raises the request's error, or `RunnerError` when the process dies. Closing the iterator early, or
        cancelling the task in it, stops the transcription.
        """
        request_id, over = next(self._ids), False
        exchange = self._exchange(msgspec.structs.replace(request, id=request_id))
        del request  # the recording is with the runner once this has sent it
        async with exchange as receive:
            try:
                while not over:
                    message = await receive()
                    assert isinstance(message, Heard | Segment | Transcribed)
                    if over := isinstance(message, Transcribed):
                        self.tally.transcribed(message)
                    yield message
            except PunaError:
                over = True
                raise
            finally:
                if not over:
                    self._send(Cancel(id=request_id))

    async def render(self, request: Generate, *, blocks: bool = False) -> Prompted:
        """Return the rendered prompt of `request`, with `blocks` if wanted. Raises the request's error."""
        message = Render(id=next(self._ids), request=request, blocks=blocks)
        async with self._exchange(message) as receive:
            reply = await receive()
        assert isinstance(reply, Prompted)
        return reply

    async def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Return the tokens of `text`. Raises the request's error."""
        message = Tokenize(
            id=next(self._ids), text=text, add_special=add_special, parse_special=parse_special
        )
        async with self._exchange(message) as receive:
            reply = await receive()
        assert isinstance(reply, Tokenized)
        return reply.tokens

    async def detokenize(self, tokens: list[int]) -> Detokenized:
        """Return the text of `tokens`. Raises the request's error."""
        async with self._exchange(Detokenize(id=next(self._ids), tokens=tokens)) as receive:
            reply = await receive()
        assert isinstance(reply, Detokenized)
        return reply

    async def ping(self, timeout_s: float = 10.0) -> Pong:
        """Return the state of the runner. Raises `RunnerError` when it does not answer in time."""
        async with self._exchange(Ping(id=next(self._ids))) as receive:
            try:
                async with asyncio.timeout(timeout_s):
                    reply = await receive()
            except TimeoutError:
                raise RunnerError(f"the model runner did not answer within {timeout_s:g} s") from None
        assert isinstance(reply, Pong)
        return reply

    async def grow(self, num_ctx: int, reserved: int, allowed: int | None = None) -> None:
        """Raise the maximum context to `num_ctx`; see `Grow`. Raises the runner's error."""
        message = Grow(id=next(self._ids), num_ctx=num_ctx, reserved=reserved, allowed=allowed)
        async with self._exchange(message) as receive:
            reply = await receive()
        assert isinstance(reply, Grown)
        self.info = reply.of(self.info)

    async def contents(self) -> list[Contents]:
        """Return the contents of the model's caches after the current step."""
        async with self._exchange(Inspect(id=next(self._ids))) as receive:
            reply = await receive()
        assert isinstance(reply, Inspected)
        return reply.caches

    async def watch(self) -> LiveState:
        """Return what the engine is doing, after the current step."""
        async with self._exchange(Watch(id=next(self._ids))) as receive:
            reply = await receive()
        assert isinstance(reply, Watched)
        return reply.state

    async def prefixes(self, since: int = 0) -> PrefixReport:
        """Return which prompts can be resumed, as changes since the version `since`; see `PrefixReport`."""
        async with self._exchange(ReportPrefixes(id=next(self._ids), since=since)) as receive:
            reply = await receive()
        assert isinstance(reply, PrefixReport)
        return reply

    def kill(self, reason: str) -> None:
        """Kill a hanging process; its requests fail with `reason`."""
        if self.alive:
            self._process.kill(reason)

    async def close(self) -> None:
        """End the process: hang up first, then kill it."""
        self._gone = True
        self._writer.close()
        if self._process.running:
            await self._process.ended(_CLOSE_TIMEOUT_S)
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._process.close()
        self._tell_all_gone()

    def death(self) -> RunnerError:
        """Return the error for the requests of the process, which has ended."""
        return self._process.death(loaded=self.info.weight_bytes > 0)

    # --- inside ------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _exchange(
        self,
        request: Generate
        | Embed
        | Transcribe
        | Render
        | Tokenize
        | Detokenize
        | Ping
        | Grow
        | Inspect
        | Watch
        | ReportPrefixes,
    ) -> AsyncGenerator[_Receive, None]:
        """Send `request`; yield a function that awaits its next reply."""
        if not self.alive:
            raise await self._died()
        request_id = request.id
        self._replies[request_id] = asyncio.Queue()
        try:
            frame = pack(request)
            del request  # which may be large
            self._write(frame)
            del frame
            yield lambda: self._receive(request_id)
        finally:
            del self._replies[request_id]
            self._overrun.discard(request_id)

    async def _receive(self, request_id: int) -> FromRunner:
        message = await self._replies[request_id].get()
        if message is None:
            raise await self._died()
        if isinstance(message, Failed):
            raise PunaError.of_kind(message.kind, message.message)
        return message

    def _send(self, message: WireMessage) -> None:
        self._write(pack(message))

    def _write(self, frame: bytearray) -> None:
        if not self._writer.is_closing():
            self._writer.write(memoryview(frame))  # or the rest would be copied

    async def _read(self, reader: asyncio.StreamReader) -> None:
        unpacker: Unpacker[FromRunner] = Unpacker(FromRunner)
        passed_on = 0
        try:
            while data := await reader.read(1 << 16):
                for frame in unpacker.feed(data):
                    if frame.id in self._replies and frame.id not in self._overrun:  # else: cancelled
                        self._pass_on(frame.id, frame.message())
                        passed_on += 1
                        if passed_on % _IN_A_ROW == 0:
                            await asyncio.sleep(0)
        except OSError:
            # It died with unread messages. Killing it now would race with asyncio for its exit status.
            self._gone = True
            await self._process.ended(_BROKEN_TIMEOUT_S)
        except RunnerError as error:
            self._process.note(str(error))
            self._process.end()
        self._gone = True
        self._tell_all_gone()

    def _pass_on(self, request_id: int, message: FromRunner) -> None:
        """Deliver `message` to the waiting request; fail the request if too many chunks are unread."""
        replies = self._replies[request_id]
        if isinstance(message, Chunk) and replies.qsize() >= MAX_UNREAD:
            self._overrun.add(request_id)
            self._send(Cancel(id=request_id))
            text = f"{MAX_UNREAD} pieces of the answer are unread: the client reads too slowly"
            message = Failed(id=request_id, message=text, kind=SlowClientError.__name__)
        replies.put_nowait(message)

    def _tell_all_gone(self) -> None:
        for queue in self._replies.values():
            queue.put_nowait(None)

    async def _died(self) -> RunnerError:
        """Return why the process died, once it has ended and its output is complete."""
        await self._process.ended(_CLOSE_TIMEOUT_S)
        await asyncio.wait([self._reading], timeout=_BROKEN_TIMEOUT_S)
        await self._process.last_words()
        return self.death()


@dataclass(frozen=True)
class StageStatus:
    """A stage of a split model: layers [begin, end) on a node. Costs are means for each token."""

    node: str
    begin: int
    end: int
    memory_bytes: int
    token_us: float  # of computing
    token_bytes: float  # that it receives


@dataclass(frozen=True)
class ModelProcess:
    """One of the processes of a model, by a name that no other one has as long as the server runs."""

    name: str
    node: str  # name of the machine
    client: RunnerClient
    stages: tuple[StageStatus, ...] = ()  # of a split model, whose first stage it is


class LocalRunner(RunnerClient):
    """A process on this machine for one model, created by `spawn` and ready after `load`."""

    scales: Final = False

    def __init__(
        self, process: SpawnedProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        super().__init__(process, reader, writer)
        self.pid = process.pid

    def scale(self, least: int, most: int) -> None:
        """Do nothing: there is one process only."""

    def processes(self) -> list[ModelProcess]:
        return [ModelProcess(f"p{self.pid}", socket.gethostname(), self)]

    @classmethod
    async def spawn(cls) -> LocalRunner:
        """Start a process that waits for `load`. Raises `RunnerError`."""
        starting = asyncio.create_task(SpawnedProcess.spawn())
        try:
            return cls(*await asyncio.shield(starting))
        except asyncio.CancelledError:  # a process can only be closed once it has started
            with contextlib.suppress(RunnerError):
                await cls(*await starting).close()
            raise
