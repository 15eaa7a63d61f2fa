"""The server's settings, from the environment (`PUNA_X`, else `OLLAMA_X`)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from puna.config import env, env_bool, env_int, home, path_of, setting
from puna.errors import PunaError, RequestError
from puna.kvcache.types import KVTypes
from puna.options import AUTO, engine_from_env, speculate_from_env
from puna.server.http.connections import ConnectionLimits
from puna.server.http.origins import OriginRules, parse_origins
from puna.server.keys import Keyring

#: `num_ctx` if neither the request, the model nor the environment sets it.
DEFAULT_CONTEXT_LENGTH: Final = 4096

#: Requests to one model that are computed together. Batched decoding reads the weights once for all of them,
#: so this costs only memory for caches; a load falls back to 1 when memory is short.
DEFAULT_PARALLEL: Final = 4

#: Where `make page` puts the built page; it is in every wheel.
BUILT_PAGE: Final = Path(__file__).parent / "page" / "dist"

_LONGEST_DURATION: Final = 100  # characters
_OFF: Final = ("off", "0", "false", "no")
_LIFETIME_S: Final = 100 * 365.25 * 86400

_UNITS_S: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_PART: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")


@dataclass(frozen=True)
class Settings:
    """Settings of the server. Durations are in seconds; `math.inf` means forever."""

    keep_alive_s: float = 300.0
    load_timeout_s: float = 300.0
    create_timeout_s: float = 300.0  # without progress
    step_timeout_s: float = 600.0  # a longer step counts as hanging
    ping_s: float = 10.0  # longest silence of a stream
    context_length: int = DEFAULT_CONTEXT_LENGTH
    parallel: int | None = None  # None: `DEFAULT_PARALLEL`, or 1 where memory is short
    max_loaded: int = 3
    max_queue: int = 512
    max_body_bytes: int = 64 * 2**20  # of a request, except uploaded files
    responses_bytes: int = 256 * 2**20  # maximum size of all stored responses
    history: Path | None = None  # file of the page's chats; None keeps them in the browser's tab
    history_bytes: int = 4096 * 2**20  # maximum size of that file
    page: Path | None = BUILT_PAGE  # folder of the built page; None serves none
    root_path: str = ""  # path below which a proxy shows the server, such as "/puna"
    remote_images: bool = False  # whether to fetch images given by URL
    mcp: bool = False  # whether the page may call tools of MCP servers
    kv_cache_type: str = "f16"
    speculate: str | None = None
    engine: str = AUTO
    origins: OriginRules = field(default_factory=lambda: parse_origins(""))
    hosts: tuple[str, ...] = ()  # additional names of the server that web pages may use; "*": any
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    keyring: Keyring = field(default_factory=Keyring)

    @classmethod
    def from_env(cls) -> Settings:
        """Read the settings. Malformed numbers and durations are ignored with a warning.

        Raises `PunaError` for a bad origin, cache type, engine, key file or drafting mode.
        """
        parallel = env_int("NUM_PARALLEL", 0, instead=f"{DEFAULT_PARALLEL}, or 1 where memory is short")
        load_timeout_s = _env_duration_s("LOAD_TIMEOUT", cls.load_timeout_s)
        step_timeout_s = _env_duration_s("STEP_TIMEOUT", cls.step_timeout_s)
        create_timeout_s = _env_duration_s("CREATE_TIMEOUT", cls.create_timeout_s)
        ping_s = _env_duration_s("PING_INTERVAL", cls.ping_s)
        context_length = env_int("CONTEXT_LENGTH", cls.context_length)
        max_loaded = env_int("MAX_LOADED_MODELS", cls.max_loaded)
        max_queue = env_int("MAX_QUEUE", cls.max_queue)
        max_body_mb = env_int("MAX_BODY_MB", 0)
        responses_mb = env_int("RESPONSES_MB", cls.responses_bytes // 2**20)
        history_mb = env_int("HISTORY_MB", cls.history_bytes // 2**20, least=1)
        return cls(
            keep_alive_s=_env_duration_s("KEEP_ALIVE", cls.keep_alive_s),
            load_timeout_s=load_timeout_s if load_timeout_s > 0 else math.inf,
            create_timeout_s=create_timeout_s if create_timeout_s > 0 else math.inf,
            step_timeout_s=step_timeout_s if step_timeout_s > 0 else math.inf,
            ping_s=ping_s if ping_s > 0 else math.inf,
            context_length=context_length if context_length > 0 else cls.context_length,
            parallel=parallel if parallel > 0 else None,
            max_loaded=max_loaded if max_loaded > 0 else cls.max_loaded,
            max_queue=max_queue if max_queue >= 0 else cls.max_queue,
            max_body_bytes=max_body_mb * 2**20 if max_body_mb > 0 else cls.max_body_bytes,
            responses_bytes=max(0, responses_mb) * 2**20,
            history=_history_path(),
            history_bytes=history_mb * 2**20,
            page=_page_path(),
            root_path=root_path(env("ROOT_PATH")),
            remote_images=env_bool("REMOTE_IMAGES"),
            mcp=env_bool("MCP"),
            kv_cache_type=str(KVTypes.from_env()),
            speculate=speculate_from_env(),
            engine=engine_from_env(),
            origins=parse_origins(env("ORIGINS")),
            hosts=tuple(name.strip().lower() for name in env("ALLOWED_HOSTS").split(",") if name.strip()),
            connections=_connection_limits(),
            keyring=Keyring.from_env(),
        )


def root_path(text: str) -> str:
    """Return a path without its last slash: `/puna`; empty for the root. Raises PunaError."""
    path = text.strip().rstrip("/")
    if path and not re.fullmatch(r"(/(?!\.\.?(/|$))[A-Za-z0-9._~-]+)+", path):
        raise PunaError(f"the root path (PUNA_ROOT_PATH) must be a path such as /puna, not {text!r}")
    return path


def _history_path() -> Path | None:
    given = env("HISTORY")
    if given.lower() in _OFF:
        return None
    return path_of(given) if given else home() / "history.db"


def _page_path() -> Path | None:
    given = env("PAGE")
    if given.lower() in _OFF:
        return None
    return path_of(given) if given else BUILT_PAGE


def parse_duration_s(text: str) -> float:
    """Return the seconds of a duration in Go's form (`1h30m`, `250ms`, `-1m`, `0`). Raises `RequestError`."""
    if len(text) > _LONGEST_DURATION:
        raise RequestError(f"time: invalid duration: longer than {_LONGEST_DURATION} characters")
    rest = text.removeprefix("-") if text.startswith("-") else text.removeprefix("+")
    sign = -1.0 if text.startswith("-") else 1.0
    if rest == "0":
        return 0.0
    total, position = 0.0, 0
    while position < len(rest):
        part = _PART.match(rest, position)
        if part is None:
            if re.fullmatch(r"[0-9]+\.?[0-9]*|\.[0-9]+", rest[position:]):
                raise RequestError(f'time: missing unit in duration "{text}" (as in "5m", "90s")')
            break
        total += float(part[1]) * _UNITS_S[part[2]]
        position = part.end()
    if not rest or position < len(rest):
        raise RequestError(f'time: invalid duration "{text}" (as in "5m", "90s", "1h30m")')
    return sign * total


def keep_alive_s(value: object) -> float | None:
    """Return the seconds of a request's `keep_alive`: None if absent, `math.inf` if negative."""
    if value is None:
        return None
    if isinstance(value, str):
        seconds = parse_duration_s(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        raise RequestError(
            f"keep_alive: unsupported type {type(value).__name__}; "
            'give a number of seconds or a duration like "5m", negative for forever'
        )
    # Durations beyond a lifetime also mean forever, because the time of expiry must be a valid date.
    return math.inf if seconds < 0 or seconds > _LIFETIME_S else seconds


def _connection_limits() -> ConnectionLimits:
    default = ConnectionLimits()

    def within_s(name: str, default_s: float) -> float:
        given_s = _env_duration_s(name, default_s)
        return given_s if given_s > 0 else math.inf

    return ConnectionLimits(
        total=env_int("MAX_CONNECTIONS", default.total, least=1),
        per_address=env_int("MAX_CONNECTIONS_PER_ADDRESS", default.per_address),
        header_s=within_s("HEADER_TIMEOUT", default.header_s),
        body_s=within_s("BODY_TIMEOUT", default.body_s),
        client_s=within_s("CLIENT_TIMEOUT", default.client_s),
    )


def _env_duration_s(name: str, default: float) -> float:
    return setting(name, _duration_s, default, f"{default:g} seconds")


def _duration_s(text: str) -> float:
    seconds = int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else text
    try:
        return keep_alive_s(seconds) or 0.0
    except RequestError:
        raise ValueError("must be a number of seconds or a duration such as 5m or 1h30m") from None
