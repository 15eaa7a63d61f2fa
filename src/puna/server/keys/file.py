"""The file of keys: JSON that `puna key` writes and the server reads."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from puna.config import env, home, path_of
from puna.errors import KeyFileError
from puna.server.keys.key import Key


class _Keys(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[Key]


def key_file() -> Path:
    """`PUNA_API_KEYS_FILE`, default `~/.puna/keys.json`."""
    given = env("API_KEYS_FILE")
    return path_of(given) if given else home() / "keys.json"


def read_keys(path: Path) -> list[Key]:
    """The keys in `path`. Raises KeyFileError, and FileNotFoundError when there is no such file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Keys).keys
    except FileNotFoundError:
        raise
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{path}: cannot read the keys: {error}") from error


def change_keys(path: Path, change: Callable[[list[Key]], Sequence[Key]]) -> None:
    """Replace the keys in `path` with what `change` makes of them; a file that is missing has none.

    Readers see the file before or after, and several changes come one after another. Only the owner may read
    the file. Raises KeyFileError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_name(path.name + ".lock")):
            try:
                keys = read_keys(path)
            except FileNotFoundError:
                keys = []
            content = msgspec.json.format(msgspec.json.encode(_Keys(list(change(keys)))))
            draft = path.with_name(f"{path.name}.{os.getpid()}")
            with open(draft, "wb", opener=_private) as file:
                file.write(content + b"\n")
            draft.replace(path)
    except OSError as error:
        raise KeyFileError(f"{path}: cannot write the keys: {error}") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
