"""A runner process and its output, as its parent sees them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections import deque
from collections.abc import Sequence

from puna.errors import OutOfMemoryError, RunnerError
from puna.machine import process_memory, says_out_of_memory
from puna.protocol import IN_DOUBT, OUT_OF_MEMORY


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


#: Lines of the process's error output kept for the error message if it dies.
_KEPT_LINES = 20
#: How long to wait for a killed process to end; stuck in a system call, it may never end.
_KILL_TIMEOUT_S = 5.0
#: How long to wait for the last output of a process that has ended.
_LAST_WORDS_S = 1.0

#: Logs the process's error output in its parent.
_log = logging.getLogger("puna.runner")


class SpawnedProcess:
    """An operating system's process `puna.runner`, a child of this one."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        output: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._process = process
        self._output = output[1]  # socket of its error output, which is never written to
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._reading = asyncio.create_task(self._read_output(output[0]))
        self._killed_for: str | None = None

    @classmethod
    async def spawn(cls) -> tuple[SpawnedProcess, asyncio.StreamReader, asyncio.StreamWriter]:
        """Start a process, and return it with the streams of its socket. Raises `RunnerError`."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise RunnerError(f"cannot start a runner process: {error}") from error
        with theirs:
            try:
                process = await cls._start(theirs)
            except BaseException:
                ours.close()
                raise
        reader, writer = await asyncio.open_connection(sock=ours)
        return process, reader, writer

    @classmethod
    async def listening(cls, listener: socket.socket, owner: socket.socket) -> SpawnedProcess:
        """Start a process that serves who connects with `listener`; see `puna.runner.peers.await_server`.

        Both sockets are closed here. Raises `RunnerError`.
        """
        with listener, owner:
            return await cls._start(listener, "listening", stdin=owner.fileno())

    @classmethod
    async def _start(
        cls, sock: socket.socket, *form: str, stdin: int = asyncio.subprocess.DEVNULL
    ) -> SpawnedProcess:
        try:
            # Not a pipe: asyncio considers a process running until all of its pipes are closed.
            output, its_output = socket.socketpair()
        except OSError as error:
            raise RunnerError(f"cannot start a runner process: {error}") from error
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "puna.runner",
                str(sock.fileno()),
                *form,
                pass_fds=[sock.fileno()],
                stdin=stdin,
                stderr=its_output.fileno(),
                start_new_session=True,  # a Ctrl-C in the terminal reaches the server alone
            )
        except OSError as error:
            output.close()
            raise RunnerError(f"cannot start a runner process: {error}") from error
        finally:
            its_output.close()
        return cls(process, await asyncio.open_connection(sock=output))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def memory_bytes(self) -> int:
        """Memory of the process in bytes."""
        return process_memory(self.pid)

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    @property
    def returncode(self) -> int | None:
        """Its exit status, or the negative number of the signal that ended it; None while it runs."""
        return self._process.returncode

    @property
    def last_lines(self) -> list[str]:
        """The newest lines of its error output."""
        return list(self._last_lines)

    @property
    def last_line(self) -> str:
        """The newest line of its error output; empty before the first."""
        return self._last_lines[-1] if self._last_lines else ""

    def note(self, line: str) -> None:
        """Add a line to its error output."""
        self._last_lines.append(line)

    def kill(self, reason: str) -> None:
        """Kill the process; `reason` is why it died."""
        if self.running:
            self._killed_for = reason
            self.end()

    def end(self) -> None:
        """Kill the process without a reason of ours."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def ended(self, patience_s: float) -> None:
        """Wait for the process to end; kill it after `patience_s`."""
        try:
            async with asyncio.timeout(patience_s):
                await self._process.wait()
        except TimeoutError:
            self.end()
            try:
                async with asyncio.timeout(_KILL_TIMEOUT_S):
                    await self._process.wait()
            except TimeoutError:
                _log.error("process %d was killed but does not end; it may keep its memory", self.pid)

    async def last_words(self) -> None:
        """Wait until the output of a process that has ended is complete."""
        await asyncio.wait([self._reading], timeout=_LAST_WORDS_S)

    async def close(self) -> None:
        """Release everything of a process that has ended."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._output.close()

    def death(self, *, loaded: bool) -> RunnerError:
        """Return why the process ended; `loaded` if it had a model."""
        if self._killed_for is not None:
            return RunnerError(f"the model runner was ended: {self._killed_for}")
        return death(self._process.returncode, self._last_lines, loaded=loaded)

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
