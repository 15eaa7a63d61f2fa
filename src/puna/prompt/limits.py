"""What a chat template may take. It is a program, and whoever wrote it may be a stranger."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from puna.errors import TemplateLimitError

#: Longer templates are refused unread. The longest published ones have some 20,000 characters; this many
#: take up to a second to parse.
MAX_TEMPLATE_CHARACTERS: Final = 256_000

#: For one request, however often its template is rendered until the prompt fits the context.
PROCESSOR_TIME_S: Final = 2.0
MEMORY_BYTES: Final = 64 << 20  # beyond what the messages take
OUTPUT_BYTES: Final = 4 << 20

#: How long a rendering may take by the clock, on a machine that is busy with other things.
PATIENCE_S: Final = 30.0


def exceeded(what: str) -> TemplateLimitError:
    """The error of a request whose template took more than `what`."""
    return TemplateLimitError(
        f"the chat template was stopped: it took more than {what}, the limit for one request; "
        "simplify the template or send less to it"
    )


def too_slow() -> TemplateLimitError:
    return exceeded(f"{PROCESSOR_TIME_S:g} s of processor time")


def too_large() -> TemplateLimitError:
    return exceeded(f"{MEMORY_BYTES >> 20} MB of memory")


def too_long() -> TemplateLimitError:
    return exceeded(f"{OUTPUT_BYTES >> 20} MB of output")


def crashed(signal: int) -> TemplateLimitError:
    """The error of a request whose template ended its process by `signal`."""
    return TemplateLimitError(
        f"the chat template was stopped: it ended the process that renders it (signal {signal}), as one does "
        "that nests values without end; simplify the template"
    )


def joined(pieces: Iterable[str]) -> str:
    """The text of `pieces`. Raises TemplateLimitError as soon as it is longer than is allowed."""
    kept: list[str] = []
    length = 0
    for piece in pieces:
        length += len(piece)
        if length > OUTPUT_BYTES:
            raise too_long()
        kept.append(piece)
    return "".join(kept)
