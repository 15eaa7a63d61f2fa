"""The portable second way of each service, on whatever system the tests run."""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from puna import confined, system
from puna.system import memory, pages, processes, processors
from puna.system.locks import NamedLocks, is_locked
from tests.ports import free_port
from tests.waiting import PATIENCE_S

NAME = "0123456789abcdef" * 4


@pytest.fixture(params=["first", "second"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PUNA_PORTABLE", "1" if request.param == "second" else "0")
    assert system.has_linux() == (request.param == "first" and sys.platform == "linux")
    return str(request.param)


def test_lock_ends_when_it_is_closed(way: str, tmp_path: Path) -> None:
    path = tmp_path / ".held"
    locks, others = NamedLocks(path), NamedLocks(path)
    locks.hold(NAME)
    locks.hold(NAME)
    others.hold(NAME)
    locks.close()
    assert is_locked(path, NAME)
    others.close()
    assert not _is_locked(path)


def test_lock_ends_with_its_process(way: str, tmp_path: Path) -> None:
    path = tmp_path / ".held"
    program = f"""if True:
        import sys
        from pathlib import Path
        from puna.system.locks import NamedLocks
        locks = NamedLocks(Path({str(path)!r}))
        locks.hold({NAME!r})
        print("held", flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert is_locked(path, NAME)
        assert not _is_locked(path, NAME.replace("0", "1"))
        holder.kill()
    assert not _is_locked(path)


def _is_locked(path: Path, name: str = NAME) -> bool:
    try:
        return is_locked(path, name)
    except FileNotFoundError:  # nobody has held it
        return False


@pytest.mark.parametrize("taken", ["[bytearray(1000) for _ in range(10**7)]", "b'x' * (10**10)"])
def test_process_that_takes_too_much_memory_ends(way: str, taken: str) -> None:
    program = f"""if True:
        import os
        from puna import confined
        from puna.system.memory import limited_bytes
        with confined.bounds(60, limited_bytes() + (256 << 20)):
            b"x" * (1 << 20)
        if os.fork():  # limits are a process's own
            os._exit(os.waitstatus_to_exitcode(os.wait()[1]) % 256)
        try:
            with confined.bounds(60, limited_bytes() + (64 << 20)):
                {taken}
        except MemoryError:
            confined.end_out_of_memory()
    """
    status = subprocess.run([sys.executable, "-c", program], timeout=PATIENCE_S).returncode
    assert status in [end % 256 for end in confined.OUT_OF_MEMORY]


def test_private_memory_beyond_its_limit_raises_an_error(way: str) -> None:
    program = """if True:
        from puna.system import memory
        memory.limit_private_bytes(memory.private_bytes() + (64 << 20))
        try:
            taken = [bytearray(1000) for _ in range(10**7)]
        except MemoryError:
            print("refused")
    """
    done = subprocess.run([sys.executable, "-c", program], timeout=PATIENCE_S, stdout=subprocess.PIPE)
    assert done.stdout == b"refused\n"


def test_end_of_bounds_leaves_no_limit(way: str) -> None:
    with confined.bounds(60, memory.limited_bytes() + (256 << 20)) as left:
        pass
    assert 0 < left() < 61  # the system rounds up
    assert len(bytes(300 << 20)) == 300 << 20


def test_pages_that_are_given_back_can_be_written_again(way: str) -> None:
    mapped = mmap.mmap(-1, 8 << 20, flags=pages.UNRESERVED)
    pages.use_large_pages(mapped, 8 << 20)
    mapped[:4] = b"kept"
    mapped[4 << 20 : (4 << 20) + 4] = b"gone"
    pages.give_back(mapped, 4 << 20, 4 << 20)
    mapped[4 << 20 : (4 << 20) + 3] = b"new"
    assert (mapped[:4], mapped[4 << 20 : (4 << 20) + 3]) == (b"kept", b"new")


def test_processor_has_a_name_and_memory_is_counted(way: str) -> None:
    assert processors.processor_description()
    assert 0 < processors.usable_processors() <= (os.cpu_count() or 1)
    assert 1 << 20 < memory.resident_bytes() <= memory.limited_bytes() < 1 << 50
    assert memory.private_bytes() > 1 << 20


def test_listening_process_is_found(way: str) -> None:
    port = free_port()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        assert processes.listener_at({("127.0.0.1", port)}) is None
        listener.listen()
        found = processes.listener_at({("127.0.0.1", port)})
        assert found is not None
        assert found.pid == os.getpid()


def test_lost_connections_are_noticed_by_options_that_exist(way: str) -> None:
    with socket.socket() as connection:
        processes.notice_loss(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
