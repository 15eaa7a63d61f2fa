"""Watch the model processes of tests: Python imports this module when each starts (see tests/conftest.py).

It holds processes up for `tests.held` and notes draws that no seed decides.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys


def note_unseeded_draws(path: str) -> None:
    """Write a byte to `path` whenever a sampler of this process asks for an unpredictable seed."""
    randbits = secrets.randbits

    def noted(bits: int) -> int:
        if sys._getframe(1).f_globals["__name__"] == "puna.sample.sampler":
            with open(path, "ab") as notes:
                notes.write(b".")
        return randbits(bits)

    secrets.randbits = noted


def watch_model_process() -> None:
    """Stop this process if `tests.held` wants it, and note its unseeded draws."""
    if os.path.exists(os.environ.get("TESTS_STOPPING", "")):
        os.kill(os.getpid(), signal.SIGSTOP)
    note_unseeded_draws(os.environ["TESTS_UNSEEDED"])


if "puna.runner" in sys.orig_argv:
    watch_model_process()
