"""Who sent the request being served, and what they may do."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Literal, get_args

from puna.errors import ScopeError

#: `read`: look at models and at the server. `generate`: have models loaded, text generated, texts embedded.
#: `manage`: change what is stored, unload models, look into caches.
Scope = Literal["read", "generate", "manage"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)


@dataclass(frozen=True)
class Caller:
    """`client` tells callers apart where they wait: by the digest of a key, else by the network address."""

    client: str = ""
    key: str = ""  # its name
    digest: str = ""  # of the key, which alone has what was kept for it: a name may be used again
    scopes: tuple[Scope, ...] = SCOPES

    def require(self, scope: Scope, what: str) -> None:
        """Raise ScopeError if the caller's key does not allow `what`."""
        if scope not in self.scopes:
            raise ScopeError(f"{what} needs the scope '{scope}', which the key '{self.key}' does not have")


#: Set while a request is served, and in the tasks started for it.
current: ContextVar[Caller | None] = ContextVar("caller", default=None)


def caller() -> Caller:
    """Who sent the current request; outside of a request, somebody who may do everything."""
    return current.get() or Caller()
