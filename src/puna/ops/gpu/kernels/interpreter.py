"""Repairs of Triton's interpreter (3.6), so that it computes what a device does.

Its scalars are arrays of one number, which numpy 2.4 does not take as bounds of loops; and numpy warns of
infinities and NaN, which devices compute with silently.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np


def repair() -> None:
    """Repair the interpreter, if kernels are interpreted and this was not done yet."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from triton.runtime import interpreter

    patch, execute = interpreter._patch_lang_tensor, interpreter.GridExecutor.__call__
    if getattr(patch, "repaired", False):
        return

    def patch_and_repair(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def execute_silently(self: Any, *args: Any, **named: Any) -> Any:
        with np.errstate(all="ignore"):
            return execute(self, *args, **named)

    patch_and_repair.repaired = True  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = patch_and_repair
    interpreter.GridExecutor.__call__ = execute_silently


repair()
