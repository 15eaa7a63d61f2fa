"""Routes about the server and its model: `/health`, `/props`, `/slots` and `/lora-adapters`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from puna import __version__
from puna.chat.templates.author import Author
from puna.chat.templates.choose import chat_template
from puna.chat.templates.model_facts import ModelFacts, facts_at
from puna.errors import RequestError, ServerBusyError, UnavailableError, shown
from puna.options import MAX_ADAPTERS, AdapterFile, is_scale
from puna.server.fleet.resident import ResidentModel
from puna.server.fleet.status import look
from puna.server.http.bodies import parse_json, route
from puna.server.http.replies import json_reply
from puna.server.jobs.service import Service
from puna.server.jobs.turns import run_parser
from puna.server.llamaserver.reply import settings_of
from puna.server.llamaserver.wire import DEFAULTS, wanted_model
from puna.server.settings import DEFAULT_PARALLEL
from puna.store import StoredModel

_QUERY: Final = ("model",)


class Health(msgspec.Struct):
    status: str


class NextToken(msgspec.Struct):
    has_next_token: bool = False
    has_new_line: bool = False
    n_remain: int = -1
    n_decoded: int = 0


class Slot(msgspec.Struct):
    """A place for one of the requests computed together; requests take any that is free."""

    id: int
    id_task: int
    n_ctx: int
    speculative: bool
    is_processing: bool
    params: dict[str, Any]
    next_token: NextToken


class Modalities(msgspec.Struct):
    vision: bool
    audio: bool


class Props(msgspec.Struct):
    """A model's properties. `is_sleeping` means that the model is not in memory."""

    default_generation_settings: Slot
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str
    chat_template_caps: dict[str, bool]
    modalities: Modalities
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool


class LoraAdapter(msgspec.Struct):
    id: int
    path: str
    scale: float


class Changed(msgspec.Struct):
    success: bool


def routes(backend: Service) -> list[Route]:
    async def health(request: Request) -> Response:
        """Show that the server accepts requests."""
        return json_reply(Health("ok"))

    async def props(request: Request) -> Response:
        """Describe a model and the defaults of its completions."""
        model = _wanted(backend, request)
        entry = _loaded(backend, model)
        author, facts = Author.of(model), await asyncio.to_thread(facts_at, model.runnable_path())
        has = await run_parser(lambda: author.capabilities)
        tokens = facts.tokens.spellings if facts else {}
        slots = entry.runner.info.parallel if entry and entry.runner else None
        return json_reply(
            Props(
                default_generation_settings=_slot(backend, model, 0),
                total_slots=slots or backend.settings.parallel or DEFAULT_PARALLEL,
                model_alias=model.name,
                model_path=model.name,
                chat_template=chat_template(facts or ModelFacts(), author.template).text,
                chat_template_caps=dict.fromkeys(("supports_tools", "supports_tool_calls"), "tools" in has),
                modalities=Modalities("vision" in has, audio=False),
                bos_token=tokens.get("bos_token", ""),
                eos_token=tokens.get("eos_token", ""),
                build_info=f"puna-{__version__}",
                is_sleeping=entry is None,
            )
        )

    async def slots(request: Request) -> Response:
        """List the places for requests of a model in memory, and what they do."""
        model = _wanted(backend, request)
        entry = _loaded(backend, model)
        looks = await look([entry] if entry else [])
        parallel = looks[0].runner.info.parallel if looks else 0
        running = [one for one in backend.requests.fields() if entry and one["model"] == entry.model.name]
        if request.query_params.get("fail_on_no_slot") == "1" and len(running) >= parallel:
            raise ServerBusyError("no slot available")
        generated = [one["generated"] for one in running] + [None] * parallel
        return json_reply([_slot(backend, model, number, generated[number]) for number in range(parallel)])

    async def adapters(request: Request) -> Response:
        """List a model's adapters and their scales in requests that set none."""
        own = _wanted(backend, request).adapters
        return json_reply([LoraAdapter(number, one.name, one.scale) for number, one in enumerate(own)])

    async def set_adapters(request: Request) -> Response:
        """Confirm the scales that a model's adapters have; others are refused."""
        own = _wanted(backend, request).adapters
        if scales_of(parse_json(await request.body()), own) != [one.scale for one in own]:
            raise UnavailableError(
                "the scales of adapters are the model's, for all of its users: choose them in each request "
                '("lora": [{"id": 0, "scale": 0.5}]), or create a model with other scales'
            )
        return json_reply(Changed(True))

    return [
        *(route(path, health, "GET", "HEAD", gives=Health) for path in ("/health", "/v1/health")),
        route("/props", props, "GET", gives=Props, query=_QUERY),
        route("/slots", slots, "GET", gives=list[Slot], query=(*_QUERY, "fail_on_no_slot")),
        route("/lora-adapters", adapters, "GET", gives=list[LoraAdapter], query=_QUERY),
        route("/lora-adapters", set_adapters, "POST", gives=Changed, query=_QUERY),
    ]


def scales_of(given: Any, adapters: Sequence[AdapterFile]) -> list[float]:
    """Return the scale of each adapter after a request to set some, and all others to 0.

    Raises RequestError for anything but a list of adapters that there are, and their scales.
    """
    if not isinstance(given, list) or len(given) > MAX_ADAPTERS:
        raise RequestError(f'the body must be a list such as [{{"id": 0, "scale": 0.5}}], not {shown(given)}')
    scales = [0.0] * len(adapters)
    for item in given:
        match item:
            case {"id": int(number), "scale": int(scale) | float(scale)} if not isinstance(scale, bool):
                if isinstance(number, bool) or not 0 <= number < len(adapters):
                    raise RequestError(f"the model has no adapter {number}: it has {len(adapters)}")
                if not is_scale(scale):
                    raise RequestError(f"{shown(scale)} is not a valid scale of an adapter")
                scales[number] = float(scale)
            case _:
                raise RequestError(f"an adapter has an id and a scale, unlike {shown(item)}")
    return scales


def _wanted(backend: Service, request: Request) -> StoredModel:
    return backend.find(wanted_model(backend, request.query_params.get("model", "")))


def _loaded(backend: Service, model: StoredModel) -> ResidentModel | None:
    path = str(model.runnable_path())
    return next((entry for entry in backend.fleet.loaded() if entry.path == path), None)


def _slot(backend: Service, model: StoredModel, number: int, generated: int | None = None) -> Slot:
    """Return a slot, in use if there are `generated` tokens."""
    order = backend.order(model, {}, defaults=DEFAULTS)
    speculate = order.options.speculate or backend.settings.speculate
    return Slot(
        id=number,
        id_task=-1 if generated is None else number,
        n_ctx=backend.num_ctx(order),
        speculative=speculate not in (None, "off"),
        is_processing=generated is not None,
        params=settings_of(order.options),
        next_token=NextToken(has_next_token=generated is not None, n_decoded=generated or 0),
    )
