"""Repairs of Triton's interpreter (3.6), so that it computes what a device does.

Its scalars are arrays of one number, which numpy 2.4 does not take as bounds of loops; and numpy warns of
infinities and NaN, which devices compute with silently.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from triton.runtime import interpreter


def repair() -> None:
    """Repair the interpreter for the rest of this process; to be called once."""
    patch, execute = interpreter._patch_lang_tensor, interpreter.GridExecutor.__call__

    def patch_and_repair(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def execute_silently(self: Any, *args: Any, **named: Any) -> Any:
        with np.errstate(all="ignore"):
            return execute(self, *args, **named)

    interpreter._patch_lang_tensor = patch_and_repair
    interpreter.GridExecutor.__call__ = execute_silently
