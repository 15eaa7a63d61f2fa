"""How much each key is used, and whether that is too much."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator

from puna.errors import RateLimitError
from puna.server.keys.key import Key

_MINUTE_S = 60.0


class Usage:
    """Counts requests by key. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._now: Counter[str] = Counter()  # requests in progress
        self._used_up_s: dict[str, float] = {}  # until when its requests have used up the key's rate

    @contextlib.contextmanager
    def request(self, key: Key) -> Iterator[None]:
        """A request made with `key`, for as long as the block runs. Raises RateLimitError.

        A key that was not used for a while may use a whole minute's requests at once.
        """
        if key.concurrency and self._now[key.sha256] >= key.concurrency:
            raise RateLimitError(
                f"the key '{key.name}' has {key.concurrency} requests in progress, its limit",
                retry_after_s=1,
            )
        if key.rate:
            now_s = self._clock()
            until_s = max(self._used_up_s.get(key.sha256, now_s), now_s) + _MINUTE_S / key.rate
            if until_s - now_s > _MINUTE_S:
                raise RateLimitError(
                    f"the key '{key.name}' has made {key.rate} requests in a minute, its limit",
                    retry_after_s=math.ceil(until_s - now_s - _MINUTE_S),
                )
            self._used_up_s[key.sha256] = until_s
        self._now[key.sha256] += 1
        try:
            yield
        finally:
            self._now[key.sha256] -= 1
            if not self._now[key.sha256]:
                del self._now[key.sha256]
