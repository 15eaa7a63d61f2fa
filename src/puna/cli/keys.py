"""`puna key`: API keys for clients of the server on this machine, kept in the file it reads."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence

from puna.cli.manage import table
from puna.errors import KeyFileError, RequestError
from puna.server.http.connections import SCOPES, KeyScope
from puna.server.keys import Key, change_keys, key_file, new_key, read_keys


def make_key(name: str, scopes: str, rate: str, concurrency: int) -> None:
    """Make a key and print it alone on standard output, ready for a file or a variable."""
    text, made = new_key(name, _scopes(scopes), _rate(rate), concurrency)

    def add(keys: list[Key]) -> list[Key]:
        if any(key.name == made.name for key in keys):
            raise KeyFileError(f"key '{made.name}' already exists; choose another --name or revoke it")
        return [*keys, made]

    change_keys(key_file(), add)
    print(text)
    print(
        f"This is key '{made.name}'. It will not be shown again: {key_file()} holds only its hash.\n"
        "From now on, a server that reads this file refuses requests without a key. Clients send theirs as\n"
        "'Authorization: Bearer KEY'; set PUNA_API_KEY for this command line.",
        file=sys.stderr,
    )


def print_keys(*, as_json: bool) -> None:
    """Print the keys' names and limits, as a table or a JSON array; a limit of 0 means none."""
    try:
        keys = read_keys(key_file())
    except FileNotFoundError:
        keys = []
    if as_json:
        names = ("name", "scopes", "rate", "concurrency", "created")
        print(json.dumps([{name: getattr(key, name) for name in names} for key in keys]))
        return
    rows = [
        (
            key.name,
            ",".join(key.scopes),
            f"{key.rate}/min" if key.rate else "-",
            str(key.concurrency or "-"),
            key.created[:10] or "-",
        )
        for key in keys
    ]
    print(table(("NAME", "SCOPES", "RATE", "CONCURRENCY", "CREATED"), rows))


def revoke_keys(names: Sequence[str]) -> None:
    """Remove keys by name. Raises KeyFileError, and removes none, if one does not exist."""

    left: list[Key] = []

    def without(keys: list[Key]) -> list[Key]:
        missing = set(names) - {key.name for key in keys}
        if missing:
            raise KeyFileError(f"there is no key '{min(missing)}'; 'puna key list' shows all keys")
        left[:] = (key for key in keys if key.name not in names)
        return left

    change_keys(key_file(), without)
    for name in names:
        print(f"revoked '{name}'")
    if not left:
        print(
            f"No key is left in {key_file()}. A running server goes on to refuse requests without a key;\n"
            "one started from now on asks for none, unless PUNA_API_KEYS or PUNA_API_KEYS_FILE is set.",
            file=sys.stderr,
        )


def _scopes(text: str) -> tuple[KeyScope, ...]:
    given = [scope.strip() for scope in text.split(",") if scope.strip()]
    unknown = set(given) - set(SCOPES)
    if unknown or not given:
        raise RequestError(f"--scope must be one or more of {', '.join(SCOPES)}, not {text!r}")
    return tuple(scope for scope in SCOPES if scope in given)


def _rate(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,9})(/min)?", text)
    if text and found is None:
        raise RequestError(f"--rate must be a number of requests a minute, such as 60/min, not {text!r}")
    return int(found[1]) if found else 0
