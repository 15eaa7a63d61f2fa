"""How much of anything one request may hold: more than any honest client sends.

The size of the whole body is a setting (`puna.server.http.body_limit`).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

from pydantic import Field

from puna.options import MOST_ADAPTERS

#: Characters: a registry's name, a namespace, a model and a tag have at most 600.
LONGEST_NAME: Final = 1000

MOST_MESSAGES: Final = 16_384

#: Texts to embed.
MOST_INPUTS: Final = 8192

#: Documents an answer may rest on.
MOST_DOCUMENTS: Final = 4096

#: Files and licences of a model to be created.
MOST_FILES: Final = 1024

T = TypeVar("T")
K = TypeVar("K")

#: The name of a model.
Name = Annotated[str, Field(max_length=LONGEST_NAME)]

#: Only the first wrong item of a list is looked for.
Messages = Annotated[list[T], Field(max_length=MOST_MESSAGES, fail_fast=True)]
Adapters = Annotated[list[T], Field(max_length=MOST_ADAPTERS, fail_fast=True)]
Files = Annotated[dict[K, T], Field(max_length=MOST_FILES)]
Licences = Annotated[list[str], Field(max_length=MOST_FILES, fail_fast=True)]
Many = Annotated[list[T], Field(fail_fast=True)]
Documents = Annotated[list[dict[str, Any]], Field(max_length=MOST_DOCUMENTS, fail_fast=True)]
