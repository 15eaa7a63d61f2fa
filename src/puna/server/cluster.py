"""Routes of a cluster: `/api/cluster`, `/api/cluster/drain`, `/api/cluster/cache-events`."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from puna.cluster.cluster import Cluster
from puna.cluster.replicas import Replicas, ReplicaStatus
from puna.errors import UnavailableError
from puna.server.fleet.cache_events import CacheEvent, CacheListeners
from puna.server.fleet.fleet import Fleet
from puna.server.http.bodies import Body, body_route, route
from puna.server.http.replies import SSE, json_reply, native_error_event
from puna.server.http.streams import Streams


@dataclass(frozen=True)
class NodeStatus:
    """A node of the cluster; memory in bytes."""

    name: str
    id: str  # Ray's
    address: str
    state: str  # "ready" or "draining"
    processors: int
    memory_bytes: int
    available_bytes: int
    free_disk_bytes: int


@dataclass(frozen=True)
class ModelReplicas:
    """A model in memory, by the name it was loaded by, and its replicas: between `least` and `most`."""

    name: str
    replicas: list[ReplicaStatus]
    least: int
    most: int


@dataclass(frozen=True)
class ClusterStatus:
    """All nodes and models; `refused` says by Ray's id why a node is not used."""

    nodes: list[NodeStatus]
    refused: dict[str, str]
    models: list[ModelReplicas]


class DrainBody(Body):
    """The node to give no new work, by name, address or begin of its id; `undo` gives it work again."""

    node: str
    undo: bool = False


def routes(cluster: Cluster | None, fleet: Fleet, streams: Streams) -> list[Route]:
    listeners = CacheListeners(fleet)

    def found() -> Cluster:
        if cluster is None:
            raise UnavailableError("this server is no cluster; start it with `puna serve --cluster`")
        return cluster

    async def show(request: Request) -> Response:
        """The nodes of the cluster, and the replicas of its models."""
        return json_reply(_status(found(), fleet))

    async def drain(body: DrainBody) -> Response:
        """Give a node no new work; answered once its running answers have ended."""
        node = found().node(body.node)
        if body.undo:
            found().undrain(node)
        else:
            await found().drain(node)
        return json_reply(_status(found(), fleet))

    async def cache_events(request: Request) -> ASGIApp:
        """Stream what the prompt caches of all replicas hold, as digests, for routers other than Puna's."""
        return streams.events(listeners.events(), native_error_event)

    return [
        route("/api/cluster", show, "GET", gives=ClusterStatus),
        route("/api/cluster/cache-events", cache_events, "GET", events=CacheEvent, content_type=SSE),
        body_route("/api/cluster/drain", DrainBody, drain, gives=ClusterStatus),
    ]


def _status(cluster: Cluster, fleet: Fleet) -> ClusterStatus:
    return ClusterStatus(
        nodes=[
            NodeStatus(
                name=node.name,
                id=node.id,
                address=node.address,
                state="draining" if node.draining else "ready",
                processors=node.facts.processors,
                memory_bytes=node.facts.memory_bytes,
                available_bytes=node.facts.available_bytes,
                free_disk_bytes=node.facts.free_disk_bytes,
            )
            for node in cluster.nodes
        ],
        refused=cluster.refused,
        models=[
            ModelReplicas(each.model.name, each.runner.status(), *each.runner.bounds)
            for each in fleet.loaded()
            if isinstance(each.runner, Replicas)
        ],
    )
