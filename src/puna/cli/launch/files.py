"""Settings files of agents: their changes, shown before they are made, and copies of what they replace."""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from puna.cli.launch.jsonc import JsonError, with_value
from puna.errors import RequestError


@dataclass(frozen=True)
class OwnFile:
    """A file of ours, in Puna's folder, that the agent is pointed to."""

    path: Path
    content: str

    def changed(self, _present: str) -> str:
        return self.content


@dataclass(frozen=True)
class MergedFile:
    """Settings, JSON with comments, in which we set a few `values` under their keys.

    They are the user's own unless they are `in_our_folder`, where only the agent writes besides us.
    """

    path: Path
    values: Sequence[tuple[Sequence[str], Any]]
    in_our_folder: bool = False

    def changed(self, present: str) -> str:
        """Return the text with our values. Raises RequestError if it is not JSON."""
        try:
            for keys, value in self.values:
                present = with_value(present, keys, value)
        except JsonError as error:
            raise RequestError(
                f"cannot add settings to {self.path} ({error}); correct the file, or move it away"
            ) from error
        return present


SettingsFile = OwnFile | MergedFile


@dataclass(frozen=True)
class Change:
    """A file whose text becomes `after`; `before` is empty if it does not exist."""

    file: SettingsFile
    before: str
    after: str

    @property
    def is_users(self) -> bool:
        return isinstance(self.file, MergedFile) and not self.file.in_our_folder

    def diff(self) -> str:
        """Return the difference, as `diff -u` shows it."""
        path = str(self.file.path)
        exists = self.file.path.exists()
        return "".join(
            line if line.endswith("\n") else f"{line}\n"
            for line in difflib.unified_diff(
                self.before.splitlines(keepends=True),
                self.after.splitlines(keepends=True),
                path if exists else "/dev/null",
                path,
            )
        )

    def write(self) -> Path | None:
        """Replace the file, and return the path of a copy of the user's, if there was one."""
        path = Path(os.path.realpath(self.file.path))  # a link stays one
        path.parent.mkdir(parents=True, exist_ok=True)
        copy = None
        if self.is_users and path.exists():
            stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
            copy = path.with_name(f"{path.name}.before-puna-{stamp}")
            shutil.copy2(path, copy)
        with NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(self.after)
                file.flush()
                if path.exists():
                    shutil.copymode(path, file.name)
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
        return copy


def plan(files: Iterable[SettingsFile]) -> list[Change]:
    """Return what has to change in `files`. Raises RequestError for files that cannot be read."""
    changes = []
    for file in files:
        try:
            before = file.path.read_text() if file.path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"cannot read {file.path}: {error}") from error
        after = file.changed(before)
        if after != before:
            changes.append(Change(file, before, after))
    return changes
