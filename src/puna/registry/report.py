"""What pulling and pushing tell: how far they are, and what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import msgspec

from puna.errors import RefusedAddressError, RegistryError, UnreachableError
from puna.registry.network import what_failed
from puna.registry.remote import RefusedError


class TransferProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a pull or push is at; `total` and `completed` count the bytes of the blob `digest`."""

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0

    @classmethod
    def of_blob(cls, verb: str, digest: str, total: int, completed: int) -> TransferProgress:
        """How far the blob is: `pulling 8eeb52dfb3bb`."""
        return cls(f"{verb} {digest.removeprefix('sha256:')[:12]}", digest, total, completed)


Report = Callable[[TransferProgress], None]


def without_tls(name: str, insecure: bool) -> bool:
    """Whether the spelling of a name asks for a registry without TLS, which needs `insecure`.

    Raises RegistryError.
    """
    plain = name.strip().lower().startswith("http://")
    if plain and not insecure:
        raise RefusedAddressError(
            'insecure protocol http: add --insecure (in the API, "insecure": true) to use it'
        )
    return plain


@contextmanager
def told(what: str = "", *, passing: bool = False) -> Iterator[None]:
    """What a registry or the way to it refuses, as an error for people, which begins with `what`.

    With `passing`, what the registry itself refuses stays as it is.
    """
    try:
        yield
    except RefusedError as refusal:
        if passing:
            raise
        if refusal.status == 404:
            raise RegistryError(f"{what}file does not exist") from None
        if refusal.status in (401, 403):
            raise RegistryError(f"{what}unauthorized: access denied ({refusal})") from None
        raise RegistryError(f"{what}{refusal}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnreachableError(f"{what}{what_failed(error)}") from error
