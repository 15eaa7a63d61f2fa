"""Repairs of Triton's interpreter (3.6), so that it computes what a device does, in half the time.

Its scalars are arrays of one number, which numpy 2.4 does not take as bounds of loops; numpy warns of
infinities and NaN, which devices compute with silently. Products of matrices are added up in an order that
depends on the row, on some processors. Each call of a function within a kernel would replace
the language's functions again, and integers would be added and multiplied twice to find overflows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from triton.runtime import interpreter


def repair() -> None:
    """Repair the interpreter for the rest of this process; to be called once."""
    patch, patch_all = interpreter._patch_lang_tensor, interpreter._patch_lang
    execute = interpreter.GridExecutor.__call__
    patched: set[int] = set()  # modules whose functions see the interpreter's language, in this launch

    def patch_and_repair(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def patch_once(function: Any) -> Any:
        module = id(function.__globals__)
        if module in patched:
            return None
        patched.add(module)
        return patch_all(function)

    def execute_silently(self: Any, *args: Any, **named: Any) -> Any:
        patched.clear()
        with np.errstate(all="ignore"):
            return execute(self, *args, **named)

    def dot(builder: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
        numbers = (each.data.astype(d.data.dtype) for each in (a, b))
        found = np.einsum("...mk,...kn->...mn", *numbers)
        return interpreter.TensorHandle(found + d.data, d.dtype.scalar)

    interpreter._patch_lang_tensor = patch_and_repair
    interpreter._patch_lang = patch_once
    interpreter.InterpreterBuilder.create_dot = dot
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    interpreter.GridExecutor.__call__ = execute_silently
