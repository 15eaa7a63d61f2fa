"""The application: routes, middleware, and the replies to requests without a route."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from puna.cluster.cluster import Cluster
from puna.errors import MethodError, PathNotFoundError, PunaError
from puna.hosts import Host
from puna.server.anthropic.batches import Batches
from puna.server.anthropic.routes import routes as anthropic_routes
from puna.server.cluster import routes as cluster_routes
from puna.server.events import routes as event_routes
from puna.server.fleet.fleet import Fleet
from puna.server.http.bodies import BodyLimitMiddleware
from puna.server.http.connections import DisconnectMiddleware
from puna.server.http.logs import RequestLogMiddleware
from puna.server.http.origins import CORSMiddleware, HostCheckMiddleware
from puna.server.http.replies import LLAMA_SERVER_PATHS, error_reply, text_reply
from puna.server.inspection import routes as inspection_routes
from puna.server.jobs.service import Service
from puna.server.keys import KeyCheckMiddleware
from puna.server.llamaserver.routes import routes as llamaserver_routes
from puna.server.metrics import Metrics
from puna.server.ollama.routes import routes as ollama_routes
from puna.server.openai.responses.background import BackgroundResponses
from puna.server.openai.routes import routes as openai_routes
from puna.server.page.routes import routes as page_routes
from puna.server.page.service import PageService
from puna.server.page.static import routes as page_files
from puna.server.settings import Settings
from puna.store import Store


def create_app(
    store: Store,
    fleet: Fleet,
    settings: Settings,
    metrics: Metrics,
    bound: Host,
    cluster: Cluster | None = None,
) -> Starlette:
    """Return the ASGI application. `bound` is the address it listens on, which decides the Host check."""
    backend = Service(store, fleet, settings, metrics)
    # Anthropic's routes for models come before OpenAI's.
    batches, background, page = Batches(backend), BackgroundResponses(), PageService(backend)
    apis = [
        *ollama_routes(backend),
        *anthropic_routes(backend, batches),
        *openai_routes(backend, background),
        *llamaserver_routes(backend),
        *event_routes(backend),
        *inspection_routes(backend),
    ]
    files = page_files(settings.page) if settings.page is not None else []
    routes = [
        *files,
        *apis,
        *page_routes(page),
        *cluster_routes(cluster, fleet, backend.streams),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            *([Middleware(RootPathMiddleware, root=settings.root_path)] if settings.root_path else []),
            Middleware(RequestLogMiddleware),
            Middleware(CORSMiddleware, rules=settings.origins),
            Middleware(
                HostCheckMiddleware,
                bound=bound,
                allowed=settings.hosts,
                needs_key=partial(attrgetter("required"), settings.keyring),
            ),
            Middleware(KeyCheckMiddleware, keyring=settings.keyring),
            Middleware(BodyLimitMiddleware, max_bytes=settings.max_body_bytes),
            Middleware(DisconnectMiddleware),
        ],
        exception_handlers={PunaError: error_reply, HTTPException: _http_exception, Exception: error_reply},
    )
    app.state.batches = batches
    app.state.lasting = (batches, background, page)
    app.router.redirect_slashes = False
    app.router.default = _not_found
    return app


class RootPathMiddleware:
    """Takes `root` off paths that begin with it, for proxies that leave it there."""

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app = app
        self._root = root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            if path == self._root:
                await RedirectResponse(self._root + "/", 308)(scope, receive, send)
                return
            if path.startswith(self._root + "/"):
                scope = {**scope, "path": path[len(self._root) :]}
        await self._app(scope, receive, send)


async def _http_exception(request: Request, error: Exception) -> Response:
    return await _refuse(request, isinstance(error, HTTPException) and error.status_code == 405)


async def _refuse(request: Request, has_path: bool) -> Response:
    """Refuse an unknown path, or a method that a path does not take: in text, or in JSON as other APIs do."""
    method, path = request.method, request.scope["path"]
    if path == "/v1" or path.startswith("/v1/") or path in LLAMA_SERVER_PATHS:
        error = (
            MethodError(f"{path} does not take {method}")
            if has_path
            else PathNotFoundError(f"there is no {method} {path}; /openapi.json lists what there is")
        )
        return await error_reply(request, error)
    return text_reply("405 method not allowed", 405) if has_path else text_reply("404 page not found", 404)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    await (await _redirect_or_refuse(Request(scope)))(scope, receive, send)


async def _redirect_or_refuse(request: Request) -> Response:
    """Redirect if only the trailing slash is wrong, else return 404."""
    path: str = request.scope["path"]
    other = path.rstrip("/") if path.endswith("/") else path + "/"
    scope = {**request.scope, "path": other}
    if other and any(
        route.matches(scope)[0] is not Match.NONE for route in request.app.routes if isinstance(route, Route)
    ):
        query = request.scope["query_string"].decode("latin-1")
        url = quote(other) + (f"?{query}" if query else "")
        return RedirectResponse(url, 301 if request.method == "GET" else 307)
    return await _refuse(request, has_path=False)
