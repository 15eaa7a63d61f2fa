"""A repair of Triton's interpreter: with numpy 2.4, it cannot loop up to a number computed in the kernel.

Its scalars are arrays of one number, which numpy no longer converts to integers (Triton 3.6).
"""

from __future__ import annotations

import os
from typing import Any


def repair() -> None:
    """Let scalars of the interpreter be bounds of loops, if kernels are interpreted."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor
    if getattr(patch, "repaired", False):
        return

    def patch_and_repair(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    patch_and_repair.repaired = True  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = patch_and_repair


repair()
