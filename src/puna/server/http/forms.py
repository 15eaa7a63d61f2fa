"""Multipart forms: a file with fields, read into wire types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import ConfigDict
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from puna.errors import RequestError
from puna.server.http.bodies import Body, body_of

#: Maximum fields of a form besides its file, and maximum bytes of each.
_MAX_FIELDS: Final = 64
_MAX_FIELD_BYTES: Final = 1 << 20

_MULTIPART: Final = "multipart/form-data"


class FormFields(Body):
    """Base of the fields of forms, all of which arrive as texts. Names of lists may end with `[]`."""

    model_config = ConfigDict(strict=False)


F = TypeVar("F", bound=FormFields)


@dataclass(frozen=True)
class FormFile:
    """A file of a form; its name comes from the client."""

    name: str
    data: bytes


class _InMemory(MultiPartParser):
    """A parser that writes no files: the body is in memory anyway."""

    spool_max_size = 1 << 62


async def read_form(request: Request, kind: type[F], file: str) -> tuple[F, FormFile]:
    """Return the fields of a multipart form as `kind`, and its file, the field `file`.

    Raises RequestError saying what is wrong and where.
    """
    given = request.headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() != _MULTIPART:
        raise RequestError(
            f"the request must be {_MULTIPART}, with the field '{file}', not {given or 'empty'!r}"
        )
    parser = _InMemory(
        request.headers,
        request.stream(),
        max_files=1,
        max_fields=_MAX_FIELDS,
        max_part_size=_MAX_FIELD_BYTES,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise RequestError(f"the request body is not a valid form: {error.message}") from error
    upload = form.get(file)
    if not isinstance(upload, UploadFile):
        raise RequestError(f"field '{file}' is missing: it is a file with a name")
    data = await upload.read()
    await upload.close()
    return body_of(_fields(form, kind), kind), FormFile(upload.filename or "", data)


def _fields(form: FormData, kind: type[FormFields]) -> Mapping[str, Any]:
    """Return the texts of a form, as lists where `kind` has lists; empty ones are left out."""
    texts = [(name.removesuffix("[]"), value) for name, value in form.multi_items() if isinstance(value, str)]
    lists = {name for name, field in kind.model_fields.items() if field.default_factory is list}
    fields: dict[str, Any] = {}
    for name, value in texts:
        if name in lists:
            fields.setdefault(name, []).append(value)
        elif value:
            fields[name] = value
    return fields
