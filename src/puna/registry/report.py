"""Reports of pulls and pushes: their progress and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import msgspec

from puna.errors import RefusedAddressError, RegistryError, UnreachableError
from puna.registry.network import what_failed
from puna.registry.remote import RefusedError


class TransferProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress of a pull or push; `total` and `completed` count bytes of the blob `digest`."""

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0

    @classmethod
    def of_blob(cls, verb: str, digest: str, total: int, completed: int) -> TransferProgress:
        """Return the progress of a blob, with a status such as `pulling 8eeb52dfb3bb`."""
        return cls(f"{verb} {digest.removeprefix('sha256:')[:12]}", digest, total, completed)


Report = Callable[[TransferProgress], None]


def without_tls(name: str, insecure: bool) -> bool:
    """Whether a name starts with `http://`, for a registry without TLS, which needs `insecure`.

    Raises RegistryError.
    """
    plain = name.strip().lower().startswith("http://")
    if plain and not insecure:
        raise RefusedAddressError(
            'insecure protocol http: add --insecure (in the API, "insecure": true) to use it'
        )
    return plain


@contextmanager
def translated_errors(prefix: str = "", *, keep_refusals: bool = False) -> Iterator[None]:
    """Turn errors of a registry or its connection into errors for users, starting with `prefix`.

    With `keep_refusals`, RefusedError passes unchanged.
    """
    try:
        yield
    except RefusedError as refusal:
        if keep_refusals:
            raise
        if refusal.status == 404:
            raise RegistryError(f"{prefix}file does not exist") from None
        if refusal.status in (401, 403):
            raise RegistryError(f"{prefix}unauthorized: access denied ({refusal})") from None
        raise RegistryError(f"{prefix}{refusal}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnreachableError(f"{prefix}{what_failed(error)}") from error
