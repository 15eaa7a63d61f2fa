"""Which of a repository's GGUF files a name means: the quantisation, its parts, the projector beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from puna.errors import RegistryError

#: What a name without a tag means, best first.
_PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_K_XL", "Q4_0", "MXFP4", "MXFP4_MOE", "Q5_K_M", "Q6_K", "Q8_0", "Q3_K_M")
_PREFERRED_PROJECTORS = ("F16", "FP16", "BF16", "Q8_0", "F32")
#: Files beside models that are none: projectors, what quantising used, drafters.
_NO_MODEL = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})")
_LABEL = re.compile(
    r"(?:^|[-._])((?:I?Q|TQ)\d[A-Z0-9_]*|BF16|FP?16|FP?32|FP8|MXFP4(?:_MOE)?|NVFP4)$", re.IGNORECASE
)
_MOST_NAMED = 12


@dataclass(frozen=True)
class RepositoryFile:
    """A file of a repository, by its path there, with its size in bytes and its digest."""

    path: str
    size: int
    digest: str

    @property
    def stem(self) -> str:
        """The name without folders, ending and the number of the part."""
        name = PurePosixPath(self.path).name.removesuffix(".gguf")
        part = _PART.fullmatch(name)
        return part["stem"] if part else name

    @property
    def part(self) -> tuple[int, int]:
        """Which part it is, from 1, and of how many."""
        part = _PART.fullmatch(PurePosixPath(self.path).name.removesuffix(".gguf"))
        return (int(part["number"]), int(part["count"])) if part else (1, 1)

    @property
    def label(self) -> str:
        """How it is quantised, as its name says: `Q4_K_M`; else empty."""
        found = _LABEL.search(self.stem)
        return found[1].upper() if found else ""

    @property
    def folder(self) -> PurePosixPath:
        return PurePosixPath(self.path).parent


@dataclass(frozen=True)
class Choice:
    """The files of one model: its parts in their order, and the projector, if there is one."""

    parts: tuple[RepositoryFile, ...]
    projector: RepositoryFile | None


def choose(files: Iterable[RepositoryFile], tag: str, where: str) -> Choice:
    """What `tag` means among a repository's files: a quantisation, a file's name, or the best (`latest`).

    Raises RegistryError, naming `where`, if there is no such file, or a part of it is missing.
    """
    found = [file for file in files if file.path.endswith(".gguf")]
    models = [file for file in found if not any(word in file.stem.lower() for word in _NO_MODEL)]
    if not models:
        raise RegistryError(
            f"{where} has no GGUF file of a model; look for a repository that has (often -GGUF)"
        )
    first = _chosen(models, tag)
    if first is None:
        labels = sorted({file.label or file.stem for file in models})
        named = ", ".join(labels[:_MOST_NAMED]) + (", ..." if len(labels) > _MOST_NAMED else "")
        raise RegistryError(f"{where} has no '{tag}'; it has {named}")
    return Choice(_parts(models, first, where), _projector(found, first))


def _chosen(models: Sequence[RepositoryFile], tag: str) -> RepositoryFile | None:
    """The first part of what `tag` means."""
    order = sorted(models, key=lambda file: (len(PurePosixPath(file.path).parts), file.path))
    if tag.lower() == "latest":
        for label in _PREFERRED:
            if found := next((file for file in order if file.label == label), None):
                return found
        return order[0]
    wanted = tag.lower().removesuffix(".gguf")
    exact = [
        file
        for file in order
        if wanted in (file.label.lower(), file.stem.lower(), PurePosixPath(file.path).stem.lower())
    ]
    within = re.compile(rf"(^|[-._/]){re.escape(wanted)}([-._/]|$)")
    return next(iter(exact), None) or next((file for file in order if within.search(file.path.lower())), None)


def _parts(models: Sequence[RepositoryFile], first: RepositoryFile, where: str) -> tuple[RepositoryFile, ...]:
    count = first.part[1]
    same = {
        file.part[0]: file
        for file in models
        if (file.folder, file.stem, file.part[1]) == (first.folder, first.stem, count)
    }
    if missing := [number for number in range(1, count + 1) if number not in same]:
        raise RegistryError(f"{where}: part {missing[0]} of {count} of {first.stem} is missing")
    return tuple(same[number] for number in range(1, count + 1))


def _projector(files: Sequence[RepositoryFile], model: RepositoryFile) -> RepositoryFile | None:
    """The best projector in the model's folder, or else in one above it."""

    def rank(file: RepositoryFile) -> tuple[int, int, str]:
        known = file.label in _PREFERRED_PROJECTORS
        best = _PREFERRED_PROJECTORS.index(file.label) if known else len(_PREFERRED_PROJECTORS)
        return -len(file.folder.parts), best, file.path

    near = [
        file
        for file in files
        if "mmproj" in file.stem.lower()
        and (file.folder == model.folder or file.folder in model.folder.parents)
    ]
    return min(near, key=rank, default=None)
