"""Routes of models in the store and in memory: tags, show, ps, cancel, copy, delete; and of the version."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from puna import __version__
from puna.chat.templates.author import Author
from puna.devices import devices
from puna.errors import InvalidNameError, ModelNotFoundError, PunaError, RequestError
from puna.gguf import open_gguf
from puna.options import Options
from puna.server.fleet.events import ModelCreated, ModelDeleted
from puna.server.fleet.resident import ResidentModel
from puna.server.fleet.status import ModelStatus, look, own_fields
from puna.server.http.bodies import NOTHING, body_route, route
from puna.server.http.connections import caller
from puna.server.http.logs import facts
from puna.server.http.replies import TEXT, empty, json_reply, text_reply
from puna.server.jobs.service import Service
from puna.server.ollama.reply import in_local_time
from puna.server.ollama.wire import CancelRequest, CopyRequest, ModelRequest, ShowRequest
from puna.store import ModelName, StoredModel
from puna.store.show import model_info, modelfile_text, parameters_text, projector_info, tensor_list

#: The Ollama version whose API this server speaks; clients compare it to find out what they can use.
OLLAMA_VERSION: Final = "0.24.0"

_log = logging.getLogger(__name__)


def routes(backend: Service) -> list[Route]:
    # Handlers are closures over `backend`, one for each row of the table at the end, which makes this long.
    async def greeting(request: Request) -> Response:
        """Show that the server is running."""
        return text_reply("Ollama is running")

    async def version(request: Request) -> Response:
        """Show the versions of Ollama's API and of Puna, the machine's devices, and the default context."""
        return json_reply(
            {
                "version": OLLAMA_VERSION,
                "puna": __version__,
                "devices": devices().to_json(),
                "context_length": backend.settings.context_length,
            }
        )

    async def tags(request: Request) -> Response:
        """List the models in the store."""
        return json_reply({"models": await asyncio.to_thread(_tags, backend)})

    async def show(body: ShowRequest) -> Response:
        """Describe a model."""
        model = backend.find(body.wanted)
        value = await asyncio.to_thread(_show, model, body, backend.settings.engine)
        if facts().user_agent.startswith("GitHubCopilotChat/"):
            value["model_info"]["general.basename"] = body.wanted
        return json_reply(value)

    async def ps(request: Request) -> Response:
        """List the models in memory and the requests being served."""
        entries = backend.fleet.loaded()
        looks = {one.model: one for one in await look(entries)}
        models = [_running(entry, looks.get(entry)) for entry in entries]
        return json_reply({"models": models, "requests": backend.requests.fields()})

    async def cancel(body: CancelRequest) -> Response:
        """End a request of the caller by its id, from `X-Request-Id` or `/api/ps`."""
        if not backend.requests.cancel(body.id, caller()):
            raise ModelNotFoundError(f"no request '{body.id}' of yours is running; /api/ps lists them")
        return empty(200)

    async def finish_thinking(body: CancelRequest) -> Response:
        """End the thinking of a request of the caller, so that its answer begins."""
        if not backend.requests.finish_thinking(body.id, caller()):
            raise ModelNotFoundError(f"no request '{body.id}' of yours is running; /api/ps lists them")
        return empty(200)

    async def copy(body: CopyRequest) -> Response:
        """Give a model another name."""
        for what in ("source", "destination"):
            _check_name(getattr(body, what), f'{what} "{getattr(body, what)}" is invalid')
        try:
            await backend.in_store(lambda: backend.store.copy(body.source, body.destination))
        except ModelNotFoundError as error:
            raise ModelNotFoundError(f'model "{body.source}" not found') from error
        backend.fleet.events.say(ModelCreated(ModelName.parse(body.destination.strip()).display))
        return empty(200)

    async def delete(body: ModelRequest) -> Response:
        """Remove a model, and unload it once its requests have ended."""
        name = body.wanted
        if not name:
            raise RequestError("model is required")
        _check_name(name, f'name "{name}" is invalid')
        await backend.in_store(lambda: backend.store.delete(name))
        gone = ModelName.parse(name.strip()).display
        backend.fleet.events.say(ModelDeleted(gone))
        for entry in backend.fleet.loaded():
            if entry.model.name.lower() == gone.lower():  # nobody could unload it by that name any more
                await backend.fleet.unload(entry.path)
        return empty(200)

    return [
        route("/", greeting, "GET", "HEAD", content_type=TEXT),
        route("/api/version", version, "GET", "HEAD"),
        route("/api/tags", tags, "GET", "HEAD"),
        body_route("/api/show", ShowRequest, show),
        route("/api/ps", ps, "GET"),
        body_route("/api/cancel", CancelRequest, cancel, content_type=NOTHING),
        body_route("/api/puna/finish_thinking", CancelRequest, finish_thinking, content_type=NOTHING),
        body_route("/api/copy", CopyRequest, copy, content_type=NOTHING),
        body_route("/api/delete", ModelRequest, delete, method="DELETE", content_type=NOTHING),
    ]


def _check_name(name: str, message: str) -> None:
    try:
        ModelName.parse(name.strip())
    except InvalidNameError as error:
        raise InvalidNameError(message) from error


def _capabilities(model: StoredModel) -> list[str]:
    try:
        return list(Author.of(model).capabilities)
    except (PunaError, OSError) as error:
        _log.warning("cannot determine the capabilities of %s: %s", model.name, error)
        return []


def _answer_family(model: StoredModel) -> str:
    try:
        return Author.of(model).answer_family()
    except (PunaError, OSError):
        return ""


def _tags(backend: Service) -> list[dict[str, Any]]:
    return [_tag(model) for model in backend.store.list()]


def _tag(model: StoredModel) -> dict[str, Any]:
    facts = model.facts
    details = dict(model.details)
    if facts is not None:
        lengths = {"context_length": facts.context_length, "embedding_length": facts.embedding_length}
        details |= {name: length for name, length in lengths.items() if length}
    value = {
        "name": model.name,
        "model": model.name,
        "modified_at": in_local_time(model.modified_ns),
        "size": model.size,
        "digest": model.digest,
        "details": details,
    }
    capabilities = _capabilities(model)
    if capabilities:
        value["capabilities"] = capabilities
    if model.is_remote:
        value |= {"remote_model": model.config.remote_model, "remote_host": model.config.remote_host}
    return value


def _engine(model: StoredModel, default: str) -> str:
    """Return the engine that would run the model; empty if it cannot be run."""
    from puna.model.header import engine_for  # only needed here

    try:
        wanted = Options.merge({"engine": model.params.get("engine")}).engine or default
        with open_gguf(model.runnable_path()) as file:
            return engine_for(file, wanted)
    except (PunaError, OSError):
        return ""


def _show(model: StoredModel, body: ShowRequest, engine: str) -> dict[str, Any]:
    optional = {
        "license": "\n".join(model.license),
        "parameters": parameters_text(model.params),
        "template": model.template or (model.facts.chat_template if model.facts else None),
        "system": body.system or model.system,
        "messages": [
            {"role": item.get("role", ""), "content": item.get("content", "")} for item in model.messages
        ],
        "projector_info": projector_info(model, verbose=body.verbose),
        "tensors": tensor_list(model),
        "capabilities": _capabilities(model),
        "requires": model.config.requires,
        "renderer": model.config.renderer,
        "parser": model.config.parser,
        "engine": _engine(model, engine),  # Puna's own, like the next two
        "answer_family": _answer_family(model),
        "adapters": [
            {"id": number, "name": each.name, "scale": each.scale}
            for number, each in enumerate(model.adapters)
        ],
    }
    return {
        "modelfile": modelfile_text(model, system=body.system or None, parameters=body.options),
        "details": model.details,
        "model_info": model_info(model, verbose=body.verbose),
        "modified_at": in_local_time(model.modified_ns),
        **{name: value for name, value in optional.items() if value},
    }


def _running(entry: ResidentModel, seen: ModelStatus | None) -> dict[str, Any]:
    running = {
        "name": entry.model.name,
        "model": entry.model.name,
        "size": entry.size_bytes,
        "digest": entry.model.digest,
        "details": entry.model.details,
        "expires_at": in_local_time(entry.expires_ns),
        "size_vram": entry.vram_bytes,
        "context_length": entry.context_length,
    }
    if seen is not None:
        running |= own_fields(seen)
    else:  # not loaded, or not yet when the runners were asked
        running["loading"] = round(entry.loading, 4)  # Puna's own: the share of the weights in place
    return running
