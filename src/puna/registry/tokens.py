"""Tokens: what a registry that answers 401 wants to see, from whom it says (the `Bearer` challenge)."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import httpx
import msgspec

from puna.registry.network import in_time

if TYPE_CHECKING:
    from puna.registry.identity import Identity

_MOST_TOKEN = 64 << 10
_PARAMETER = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Tokens:
    """The newest token for one repository, and the way to another one."""

    def __init__(self, client: httpx.Client, token: str = "", *, may_create_key: bool = False) -> None:
        """`token` is one that we have before anybody asks."""
        self.token = token
        self.public_key = ""  # of the identity we have shown
        self._client = client
        self._may_create_key = may_create_key

    def renew(self, challenge: str, url: str) -> bool:
        """Answer the challenge of a request to `url`; whether there is another token now."""
        kind, _, rest = challenge.partition(" ")
        asked = dict(_PARAMETER.findall(rest))
        realm = asked.pop("realm", "")
        if kind.lower() != "bearer" or urlsplit(realm).scheme not in ("http", "https"):
            return False
        query = [("service", asked["service"])] if "service" in asked else []
        query += [("scope", scope) for scope in asked.get("scope", "").split()]
        before, self.token = self.token, self._signed(realm, query, url) or self._anybodys(realm, query)
        return self.token not in ("", before)

    def _signed(self, realm: str, query: list[tuple[str, str]], url: str) -> str:
        """What we get as who we are. Only the registry itself learns that."""
        if urlsplit(realm).netloc != urlsplit(url).netloc or (identity := self._identity()) is None:
            return ""
        self.public_key = identity.public_key
        query = [*query, ("ts", str(int(time.time()))), ("nonce", secrets.token_urlsafe(16))]
        place = _with_query(realm, query)
        nothing = base64.b64encode(hashlib.sha256(b"").hexdigest().encode()).decode()
        signature = identity.signature(f"GET,{place},{nothing}")
        return self._asked(place, {"authorization": signature})

    def _identity(self) -> Identity | None:
        from puna.registry.identity import identity

        return identity(create=self._may_create_key)

    def _anybodys(self, realm: str, query: list[tuple[str, str]]) -> str:
        return self._asked(_with_query(realm, query), {})

    def _asked(self, place: str, headers: dict[str, str]) -> str:
        asked = self._client.stream("GET", place, headers=headers)
        with in_time(f"a token of {urlsplit(place).hostname}"), asked as answer:
            data = b"" if answer.is_error else beginning(answer, _MOST_TOKEN)
        try:
            reply = msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.DecodeError:
            return ""
        token = reply.get("token") or reply.get("access_token")
        return token if isinstance(token, str) else ""


def _with_query(realm: str, query: list[tuple[str, str]]) -> str:
    """The address, exactly as it is asked and signed."""
    joint = "&" if urlsplit(realm).query else "?"
    return str(httpx.URL(f"{realm}{joint}{urlencode(query)}" if query else realm))


def beginning(answer: httpx.Response, most: int) -> bytes:
    """The first `most` bytes of an answer that is being read."""
    data = bytearray()
    for chunk in answer.iter_raw():
        data += chunk
        if len(data) >= most:
            break
    return bytes(data[:most])
