"""The server's side of a runner process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence

import msgspec

from puna.errors import (
    InsufficientMemoryError,
    OutOfMemoryError,
    PunaError,
    RunnerError,
    SlowClientError,
)
from puna.kvcache.contents import Contents
from puna.machine import process_memory, says_out_of_memory
from puna.protocol import (
    IN_DOUBT,
    OUT_OF_MEMORY,
    Cancel,
    Chunk,
    Done,
    Embed,
    Embedded,
    Evaluated,
    Failed,
    FromRunner,
    Generate,
    Grow,
    Grown,
    Inspect,
    Inspected,
    LiveState,
    Load,
    Loaded,
    LoadingProgress,
    Ping,
    Pong,
    Prompted,
    Refused,
    Render,
    Scored,
    Unpacker,
    Watch,
    Watched,
    WireMessage,
    pack,
)


def exit_in_words(code: int | None) -> str:
    """Describe `code`: an exit status, the negative number of a signal, or None before the end."""
    if code is None:
        return "it has closed its connection"
    if code == -signal.SIGKILL:
        return "killed by signal 9, as the system does when memory runs out"
    if code == -signal.SIGBUS:
        return "killed by SIGBUS: the model's file changed or the disk failed while it was read"
    return f"killed by signal {-code}" if code < 0 else f"exit status {code}"


def death(code: int | None, lines: Sequence[str], *, loaded: bool) -> RunnerError:
    """Return why a runner died, from its exit status and last lines of output; `loaded` if it had a model."""
    aborted = code == -signal.SIGABRT and any(map(says_out_of_memory, lines))
    if code == OUT_OF_MEMORY or aborted:
        return OutOfMemoryError()
    how = exit_in_words(code)
    last = next((line for line in reversed(lines) if line.strip()), how)
    if not loaded:
        return RunnerError(f"model runner process has terminated: {last} ({how})")
    if code in (1, IN_DOUBT):  # an exception; its last line says which
        how += f": {last}"
    return RunnerError(
        "model runner has unexpectedly stopped, this may be due to resource limitations or an internal "
        f"error, check the server logs for details ({how})"
    )


#: Maximum bytes kept of a line, since text from a model file may be of any length.
LONGEST_LINE = 8192


class Lines:
    """Splits received bytes into lines of text, holding no more than one line."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._missing = 0  # bytes cut off the current line

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes, without line ends; cut lines end with a note."""
        *parts, rest = data.split(b"\n")
        lines = []
        for part in parts:
            self._add(part)
            lines.append(self._take())
        self._add(rest)
        return lines

    def end(self) -> list[str]:
        """Return the last line if it was not terminated."""
        return [self._take()] if self._line else []

    def _add(self, part: bytes) -> None:
        room = LONGEST_LINE - len(self._line)
        self._line += part[:room]
        self._missing += max(len(part) - room, 0)

    def _take(self) -> str:
        text = self._line.decode(errors="replace").rstrip()
        if self._missing:
            text += f" [... {self._missing} more bytes]"
        self._line.clear()
        self._missing = 0
        return text


_Receive = Callable[[], Coroutine[None, None, FromRunner]]

#: Maximum unread chunks of an answer. The engine never waits for a client, so slots and cells become free for
#: others sooner.
MAX_UNREAD = 1024
#: Lines of the process's error output kept for the error message if it dies.
_KEPT_LINES = 20
_CLOSE_TIMEOUT_S = 5.0
#: How long to wait for a killed process to end; stuck in a system call, it may never end.
_KILL_TIMEOUT_S = 5.0
#: How long to wait for the last output of a process that has ended.
_LAST_WORDS_S = 1.0

#: Logs the process's error output in the server.
_log = logging.getLogger("puna.runner")


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

    def count(self, chunk: Chunk) -> None:
        """Count the tokens of a chunk."""
        self._add(len(chunk.tokens))

    def finish(self, done: Done, counted: int) -> None:
        """Count a finished sample; chunks, which never include the end token, had `counted` of its tokens."""
        if done.sample == 0:  # the prompt of all samples counts once
            self.finished += 1
            self.prompt_tokens += done.prompt_eval_count
            self.cached_tokens += done.cached
        self._add(done.eval_count - counted)

    def embedded(self, events: Sequence[Embedded]) -> None:
        """Count a finished request to embed."""
        self.finished += 1
        self.prompt_tokens += sum(event.prompt_eval_count for event in events)
        self.cached_tokens += sum(event.cached for event in events)

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


class LocalRunner:
    """A process for one model, created by `spawn` and ready after `load`. Only one event loop may use it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        writer: asyncio.StreamWriter,
        output: asyncio.StreamWriter,
    ) -> None:
        self.info = Loaded(context_length=0, parallel=1, weight_bytes=0, cache_bytes=0)
        self.tally = Tally()
        self._process = process
        self._writer = writer
        self._output = output  # socket of its error output, which is never written to
        self._ids = itertools.count(1)
        self._replies: dict[int, asyncio.Queue[FromRunner | None]] = {0: asyncio.Queue()}
        self._overrun: set[int] = set()  # requests dropped because their answers are not read
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._tasks: list[asyncio.Task[None]] = []
        self._gone = False
        self._killed_for: str | None = None

    @classmethod
    async def spawn(cls) -> LocalRunner:
        """Start a process that waits for `load`. Raises `RunnerError`."""
        starting = asyncio.create_task(cls._spawn())
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:  # a process can only be closed once it has started
            with contextlib.suppress(RunnerError):
                await (await starting).close()
            raise

    @classmethod
    async def _spawn(cls) -> LocalRunner:
        try:
            ours, theirs = socket.socketpair()
            # Not a pipe: asyncio considers a process running until all of its pipes are closed.
            output, its_output = socket.socketpair()
        except OSError as error:
            raise RunnerError(f"cannot start a runner process: {error}") from error
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "puna.runner",
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stderr=its_output.fileno(),
                start_new_session=True,  # a Ctrl-C in the terminal reaches the server alone
            )
        except OSError as error:
            ours.close()
            output.close()
            raise RunnerError(f"cannot start a runner process: {error}") from error
        finally:
            theirs.close()
            its_output.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        output_reader, output_writer = await asyncio.open_connection(sock=output)
        runner = cls(process, writer, output_writer)
        runner._tasks = [
            asyncio.create_task(runner._read(reader)),
            asyncio.create_task(runner._read_output(output_reader)),
        ]
        return runner

    async def load(
        self,
        load: Load,
        on_progress: Callable[[int, int], None] | None = None,
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
                message = await asyncio.wait_for(self._receive(0), stall_timeout_s)
            except TimeoutError:
                share = done / total if total else 0.0
                raise RunnerError(
                    f"timed out waiting for the model runner to start - progress {share:.2f}"
                    + (f" - {self._last_lines[-1]}" if self._last_lines else "")
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
    def pid(self) -> int:
        return self._process.pid

    @property
    def memory_bytes(self) -> int:
        """Memory of the process in bytes."""
        return process_memory(self.pid)

    @property
    def alive(self) -> bool:
        """Whether the process runs and its connection is open."""
        return not self._gone and self._process.returncode is None

    async def generate(
        self, request: Generate
    ) -> AsyncGenerator[Prompted | Evaluated | Scored | Chunk | Done, None]:
        """Yield the events of `request` (its `id` is set here), including a `Done` for each sample.

        Raises the request's error, or `RunnerError` when the process dies; an error in one sample ends all.
        Closing the iterator early, or cancelling the task in it, stops the generation within one step.
        """
        request = msgspec.structs.replace(request, id=next(self._ids))
        left, began, counted = request.samples, False, [0] * request.samples
        async with self._exchange(request) as receive:
            try:
                while left:
                    message = await receive()
                    if isinstance(message, Chunk):
                        self.tally.count(message)
                        counted[message.sample] += len(message.tokens)
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

    async def render(self, request: Generate) -> Prompted:
        """Return the rendered prompt of `request`. Raises the request's error."""
        async with self._exchange(Render(id=next(self._ids), request=request)) as receive:
            reply = await receive()
        assert isinstance(reply, Prompted)
        return reply

    async def ping(self, timeout_s: float = 10.0) -> Pong:
        """Return the state of the runner. Raises `RunnerError` when it does not answer in time."""
        async with self._exchange(Ping(id=next(self._ids))) as receive:
            try:
                reply = await asyncio.wait_for(receive(), timeout_s)
            except TimeoutError:
                raise RunnerError(f"the model runner did not answer within {timeout_s:g} s") from None
        assert isinstance(reply, Pong)
        return reply

    async def grow(self, num_ctx: int, reserved: int) -> None:
        """Raise the maximum context to `num_ctx`; see `Grow`. Raises the runner's error."""
        async with self._exchange(Grow(id=next(self._ids), num_ctx=num_ctx, reserved=reserved)) as receive:
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

    def kill(self, reason: str) -> None:
        """Kill a hanging process; its requests fail with `reason`."""
        if self.alive:
            self._killed_for = reason
            self._process.kill()

    async def close(self) -> None:
        """End the process: hang up first, then kill it."""
        self._gone = True
        self._writer.close()
        if self._process.returncode is None:
            await self._ended(_CLOSE_TIMEOUT_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._output.close()
        self._tell_all_gone()

    # --- inside ------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _exchange(
        self, request: Generate | Embed | Render | Ping | Grow | Inspect | Watch
    ) -> AsyncGenerator[_Receive, None]:
        """Send `request`; yield a function that awaits its next reply."""
        if not self.alive:
            raise await self._died()
        self._replies[request.id] = asyncio.Queue()
        try:
            self._send(request)
            yield lambda: self._receive(request.id)
        finally:
            del self._replies[request.id]
            self._overrun.discard(request.id)

    async def _receive(self, request_id: int) -> FromRunner:
        message = await self._replies[request_id].get()
        if message is None:
            raise await self._died()
        if isinstance(message, Failed):
            raise PunaError.of_kind(message.kind, message.message)
        return message

    def _send(self, message: WireMessage) -> None:
        if not self._writer.is_closing():
            self._writer.write(pack(message))

    async def _ended(self, patience_s: float) -> None:
        """Wait for the process to end; kill it after `patience_s`."""
        try:
            await asyncio.wait_for(self._process.wait(), patience_s)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            try:
                await asyncio.wait_for(self._process.wait(), _KILL_TIMEOUT_S)
            except TimeoutError:
                _log.error("process %d was killed but does not end; it may keep its memory", self.pid)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        unpacker: Unpacker[FromRunner] = Unpacker(FromRunner)
        try:
            while data := await reader.read(1 << 16):
                for frame in unpacker.feed(data):
                    if frame.id in self._replies and frame.id not in self._overrun:  # else: cancelled
                        self._pass_on(frame.id, frame.message())
        except OSError:
            # It died with unread messages. Killing it now would race with asyncio for its exit status.
            self._gone = True
            await self._ended(_LAST_WORDS_S)
        except RunnerError as error:
            self._last_lines.append(str(error))
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
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

    async def _read_output(self, reader: asyncio.StreamReader) -> None:
        """Log the process's error output, and keep its last lines.

        Read to the end, because a process whose output is not read would block.
        """
        lines = Lines()
        with contextlib.suppress(OSError):  # it died
            while data := await reader.read(1 << 16):
                self._said(lines.feed(data))
        self._said(lines.end())

    def _said(self, lines: list[str]) -> None:
        for line in lines:
            self._last_lines.append(line)
            _log.info("[%d] %s", self.pid, line)

    async def _died(self) -> RunnerError:
        """Return why the process died, once it has ended and its output is complete."""
        await self._ended(_CLOSE_TIMEOUT_S)
        await asyncio.wait(self._tasks, timeout=_LAST_WORDS_S)
        return self.death()

    def death(self) -> RunnerError:
        """Return the error for the requests of the process, which has ended."""
        if self._killed_for is not None:
            return RunnerError(f"the model runner was ended: {self._killed_for}")
        return death(self._process.returncode, self._last_lines, loaded=self.info.weight_bytes > 0)
