"""The application: routes, middleware, and answers to what no route answers."""

from __future__ import annotations

from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from puna.errors import PunaError
from puna.hosts import Host
from puna.server import unavailable
from puna.server.anthropic.routes import routes as anthropic_routes
from puna.server.fleet.fleet import Fleet
from puna.server.http.body_limit import BodyLimitMiddleware
from puna.server.http.cors import CORSMiddleware
from puna.server.http.disconnect import DisconnectMiddleware
from puna.server.http.error_replies import error_reply
from puna.server.http.host_check import HostCheckMiddleware
from puna.server.http.replies import text_reply
from puna.server.http.request_log import RequestLogMiddleware
from puna.server.inspection.routes import routes as inspection_routes
from puna.server.jobs.backend import Backend
from puna.server.keys.check import KeyCheckMiddleware
from puna.server.metrics import Metrics
from puna.server.ollama.routes import routes as ollama_routes
from puna.server.openai.routes import routes as openai_routes
from puna.server.settings import Settings
from puna.store import Store


def create_app(store: Store, fleet: Fleet, settings: Settings, metrics: Metrics, bound: Host) -> Starlette:
    """The server's ASGI application. `bound` is the address it listens on, which decides the Host check."""
    backend = Backend(store, fleet, settings, metrics)
    rooms = (ollama_routes, openai_routes, anthropic_routes, inspection_routes)
    routes = [*(route for room in rooms for route in room(backend)), *unavailable.routes()]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(RequestLogMiddleware),
            Middleware(CORSMiddleware, rules=settings.origins),
            Middleware(
                HostCheckMiddleware,
                bound=bound,
                allowed=settings.hosts,
                needs_key=lambda: settings.keyring.required,
            ),
            Middleware(KeyCheckMiddleware, keyring=settings.keyring),
            Middleware(BodyLimitMiddleware, most_bytes=settings.max_body_bytes),
            Middleware(DisconnectMiddleware),
        ],
        exception_handlers={PunaError: error_reply, HTTPException: _http_exception, Exception: error_reply},
    )
    app.router.redirect_slashes = False
    app.router.default = _not_found
    return app


async def _http_exception(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        return text_reply("405 method not allowed", 405)
    return text_reply("404 page not found", 404)


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    await _elsewhere(Request(scope))(scope, receive, send)


def _elsewhere(request: Request) -> Response:
    """A redirect when only a slash at the end is wrong, else 404."""
    path: str = request.scope["path"]
    other = path.rstrip("/") if path.endswith("/") else path + "/"
    scope = {**request.scope, "path": other}
    if other and any(
        route.matches(scope)[0] is not Match.NONE for route in request.app.routes if isinstance(route, Route)
    ):
        query = request.scope["query_string"].decode("latin-1")
        url = quote(other) + (f"?{query}" if query else "")
        return RedirectResponse(url, 301 if request.method == "GET" else 307)
    return text_reply("404 page not found", 404)
