"""The head's view of a cluster: nodes as they come and go, blobs on them, and where models are placed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec.structs

from puna.cluster.asking import NodeLostError, actor_on, ask
from puna.cluster.credentials import check_privacy
from puna.cluster.node import DiskError, Node, NodeAgent, NodeFacts, Source, check_version
from puna.cluster.replica import RemoteProcess, Replica, StageRunner, start_runner
from puna.cluster.replicas import Replicas
from puna.cluster.settings import ClusterSettings
from puna.cluster.split_plan import ModelSizes, Share, StageNode, fulfil, plan
from puna.errors import (
    InsufficientMemoryError,
    PunaError,
    RequestError,
    RunnerError,
    StoreError,
    UnsupportedModelError,
)
from puna.protocol import Load, SplitLoad, StageAddress
from puna.runner.client import ProgressCallback, RunnerClient
from puna.runner.peers import SECRET_BYTES
from puna.runner.tls import tls_contexts
from puna.store.blobs import file_digest, storage_errors

#: How often nodes are looked for and asked.
_LOOK_S: Final = 1.0
#: How long a new node may take to start its agent, and a known one to say how it is.
_AGENT_TIMEOUT_S: Final = 60.0
_FACTS_TIMEOUT_S: Final = 10.0
#: How often the progress of copying blobs is asked for, and how long it may take in all.
_PROGRESS_S: Final = 0.5
_COPY_TIMEOUT_S: Final = 24 * 3600.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Loading:
    """A model that is being loaded: its files, and how the caller learns of the load."""

    load: Load
    files: Mapping[str, str]  # digests by path at the head
    held: Mapping[Node, list[str]]  # digests of the files that each node has
    on_progress: ProgressCallback | None
    stall_timeout_s: float | None  # of a load or a copy that makes no progress
    turns: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)  # that it holds

    @contextlib.asynccontextmanager
    async def taking_turns(self) -> AsyncIterator[_Loading]:
        """Keep the turns that it takes at nodes until the end of the block."""
        async with contextlib.AsyncExitStack() as turns:
            yield replace(self, turns=turns)

    def gets_files(self, node: Node) -> bool:
        """Whether a node has the files, or room for them as far as is known."""
        return not node.disk_problem or len(self.held[node]) == len(self.files)


class Cluster:
    """The nodes of a cluster, and a launcher of runners on them; see `puna.server.fleet.resident.Launcher`.

    All methods belong to one event loop.
    """

    def __init__(self, settings: ClusterSettings, *, keep_alive_s: float, step_timeout_s: float) -> None:
        self.settings = settings
        self.keep_alive_s = keep_alive_s  # of replicas that are more than the minimum
        self.step_timeout_s = step_timeout_s
        self._nodes: dict[str, Node] = {}
        self._joining: set[str] = set()
        self._refused: dict[str, str] = {}  # why nodes are not used, by id
        self._sets: set[Replicas] = set()
        self._dividing = asyncio.Lock()  # or two divided models might wait for each other's nodes
        self._head = ""  # Ray's id of this node
        self._digests: dict[tuple[str, int, int], str] = {}  # by path, size and time
        contexts = tls_contexts(os.environ)
        self._tls = contexts[1] if contexts else None
        self._watching: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def nodes(self) -> list[Node]:
        return list(self._nodes.values())

    @property
    def refused(self) -> dict[str, str]:
        """Reasons why nodes of Ray are not used, by their ids."""
        return dict(self._refused)

    # --- life ---

    async def start(self) -> None:
        """Wait for the head's own node, and watch for others from now on. Raises PunaError."""
        import ray

        self._head = ray.get_runtime_context().get_node_id()
        await self._look()
        while self._joining:
            await asyncio.gather(*self._tasks)
        if not self._nodes:
            why = next(iter(self._refused.values()), "Ray has no nodes")
            raise PunaError(f"the cluster has no node that can be used: {why}")
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Stop watching. Models are closed by the fleet."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def launch(self) -> Replicas:
        """Return a model's replicas, of which there are none until `load`."""
        replicas = Replicas(self)
        self._sets.add(replicas)
        return replicas

    def forget(self, replicas: Replicas) -> None:
        self._sets.discard(replicas)

    # --- nodes ---

    def node(self, name: str) -> Node:
        """Return the node whose name, address or Ray id begins like `name`. Raises RequestError."""
        found = [
            node
            for node in self._nodes.values()
            if name in (node.name, node.address, node.facts.hostname) or node.id.startswith(name)
        ]
        if len(found) != 1:
            known = ", ".join(node.name for node in self._nodes.values())
            raise RequestError(
                f"{name!r} is {'no node' if not found else 'not one node only'}; there are {known}"
            )
        return found[0]

    async def drain(self, node: Node) -> None:
        """Give a node no new work; return once its running answers have ended and its models are unloaded."""
        node.draining = True
        _log.info("node %s is drained", node.name)
        await node.at_rest()
        await asyncio.gather(*(replicas.leave(node) for replicas in self._sets))

    def undrain(self, node: Node) -> None:
        """Give a drained node work again. Raises RequestError if its operator has ended it."""
        if node.leaving:
            raise RequestError(f"node {node.name} is leaving")
        node.draining = False

    def promised(self, node: Node) -> int:
        """Return the bytes by which caches on a node may still grow."""
        return sum(replicas.promised(node) for replicas in self._sets)

    def allowed(self, node: Node) -> int:
        """Return the bytes that one more model may take on a node, if they are free."""
        taken = sum(replicas.taken(node) for replicas in self._sets)
        return max(node.facts.memory_bytes - taken - self.promised(node), 0)

    def free(self, node: Node) -> int:
        """Return the bytes that are free on a node for one more model."""
        return min(node.facts.available_bytes - self.promised(node), self.allowed(node))

    # --- placement ---

    async def place(
        self,
        load: Load,
        on_progress: ProgressCallback | None = None,
        *,
        without: Collection[Node] = (),
        divide: bool = True,
        stall_timeout_s: float | None = None,
    ) -> Replica:
        """Load a model on the node that suits it best, of those that are not in `without`.

        If it fits on no node of the cluster, and may be `divide`d, several share its layers. Raises
        InsufficientMemoryError, of the node that comes closest, if it fits none, other errors of the model,
        NodeLostError if nodes were lost meanwhile, and RunnerError if no node can take it.
        """
        refusal: InsufficientMemoryError | None = None
        problem: RunnerError | None = None
        files = await self._files(load)
        held = await self._held([*files.values()])
        loading = _Loading(load, files, held, on_progress, stall_timeout_s)
        if not isinstance(self.settings.split, str):
            return await self._place_stages(loading, without)
        for node in self._by_suitability(loading, without):
            if not node.usable:
                continue  # since another one was tried
            if refusal is not None and node.facts.memory_bytes < refusal.needed:
                continue  # it would refuse, too
            try:
                with node.loads():
                    async with loading.taking_turns() as own:
                        return await node.while_there(self._load(node, own))
            except InsufficientMemoryError as error:
                if refusal is None or error.needed - error.available < refusal.needed - refusal.available:
                    refusal = error
            except NodeLostError as error:
                _log.warning("node %s cannot take a model: %s", node.name, error)
                problem = error
            except StoreError as error:
                _log.warning("node %s cannot take a model: %s", node.name, error)
                problem = problem or RunnerError(str(error))
        if refusal is not None and divide and self.settings.split == "auto" and self._is_too_large(refusal):
            try:
                return await self._place_stages(loading, without)
            except UnsupportedModelError as error:
                raise InsufficientMemoryError(
                    f"{refusal}; {error}", refusal.needed, refusal.available
                ) from error
        raise refusal or problem or RunnerError(f"no node takes new models{self._disk_problems(loading)}")

    def _is_too_large(self, refusal: InsufficientMemoryError) -> bool:
        """Whether a model would fit on no node, if only it were there."""
        return all(node.facts.memory_bytes < refusal.needed for node in self._nodes.values() if node.usable)

    async def _place_stages(self, loading: _Loading, without: Collection[Node]) -> Replica:
        """Load consecutive layers of a model on several nodes.

        Raises InsufficientMemoryError if they have no room together, RequestError if they cannot be divided
        as the settings say, and the errors of `place`.
        """
        head = self._nodes[self._head]
        sizes: ModelSizes = await ask(head.agent.sizes.remote(loading.load), head.name, _FACTS_TIMEOUT_S)
        async with self._dividing:
            while True:
                usable = self._by_suitability(loading, without)
                try:
                    return await self._load_shares(self._shares(sizes, usable), sizes, loading)
                except DiskError as error:  # its node is usable no more
                    _log.warning("a model cannot be divided as planned: %s", error)
                except InsufficientMemoryError as error:
                    if problems := self._disk_problems(loading):
                        raise InsufficientMemoryError(
                            f"{error}{problems}", error.needed, error.available
                        ) from error
                    raise

    async def _load_shares(self, shares: Sequence[Share], sizes: ModelSizes, loading: _Loading) -> Replica:
        known = {node.name: node for node in self._nodes.values()}
        nodes = [known[share.node] for share in shares]
        async with loading.taking_turns() as own:
            working: Coroutine[Any, Any, Replica] = self._load_stages(
                list(zip(shares, nodes, strict=True)), sizes, own
            )
            with contextlib.ExitStack() as stack:
                for node in nodes:
                    stack.enter_context(node.loads())
                    working = node.while_there(working)
                return await working

    def _shares(self, sizes: ModelSizes, nodes: Collection[Node]) -> list[Share]:
        """Divide a model among nodes whose kernels agree, unless others are allowed."""
        alike: dict[str, list[StageNode]] = {}
        for node in nodes:
            kind = "" if self.settings.any_kernels else node.facts.kernels
            stage = StageNode(node.name, max(self.free(node), 0), node.facts.read_speed)
            alike.setdefault(kind, []).append(stage)
        problem: PunaError = _too_little(sizes, alike)
        for _, candidates in sorted(alike.items()):
            try:
                if isinstance(self.settings.split, str):
                    found = plan(sizes, candidates)
                else:
                    found = fulfil(self.settings.split, sizes, candidates)
            except RequestError as error:
                problem = error
                continue
            if found is not None:
                return found
        raise problem

    async def _load_stages(
        self, shares: Sequence[tuple[Share, Node]], sizes: ModelSizes, loading: _Loading
    ) -> Replica:
        began_s, (_, first), *others = time.monotonic(), *shares
        split = SplitLoad(
            number=0,
            stages=tuple(
                StageAddress(node=node.name, begin=share.begin, end=share.end, address=node.address)
                for share, node in others
            ),
            secret=secrets.token_bytes(SECRET_BYTES),
            any_kernels=self.settings.any_kernels,
        )
        # The first stage has the draft model and the tower.
        layers = replace(loading, load=msgspec.structs.replace(loading.load, draft="", projector=""))
        stages: list[StageRunner] = []
        opened: list[RunnerClient] = []
        try:
            for number, (share, node) in enumerate(others, 1):
                client, process = await self._start(
                    node, layers, msgspec.structs.replace(split, number=number)
                )
                opened.append(client)
                cache_bytes = sum(sizes.caches[share.begin : share.end])
                stages.append(StageRunner(node, client, process, share.begin, share.end, cache_bytes))
            known = tuple(
                msgspec.structs.replace(each, port=stage.client.info.port)
                for each, stage in zip(split.stages, stages, strict=True)
            )
            client, process = await self._start(first, loading, msgspec.structs.replace(split, stages=known))
            opened.append(client)
            if not all(node.usable for _, node in shares):
                raise NodeLostError("a node of the model takes no models any more")
        except BaseException:
            await asyncio.gather(*(client.close() for client in opened), return_exceptions=True)
            raise
        _log.info(
            "loaded a model on %s in %.1f s",
            ", ".join(f"{node.name} (layers {share.begin} to {share.end - 1})" for share, node in shares),
            time.monotonic() - began_s,
        )
        return Replica(first, client, process, stages)

    async def _held(self, digests: list[str]) -> dict[Node, list[str]]:
        """Return which of these blobs each node has."""

        async def by(node: Node) -> list[str]:
            if node.id == self._head:
                return digests
            with contextlib.suppress(PunaError):
                found: list[str] = await ask(node.agent.held.remote(digests), node.name, _FACTS_TIMEOUT_S)
                return found
            return []

        nodes = self.nodes
        return dict(zip(nodes, await asyncio.gather(*map(by, nodes)), strict=True))

    def _by_suitability(self, loading: _Loading, without: Collection[Node]) -> list[Node]:
        """Return the usable nodes: those with all files first, then those with the most free memory."""

        def key(node: Node) -> tuple[int, int]:
            return -len(loading.held[node]), -self.free(node)

        usable = [node for node in loading.held if node.usable and loading.gets_files(node)]
        return sorted((node for node in usable if node not in without), key=key)

    def _disk_problems(self, loading: _Loading) -> str:
        """Return the end of a message that no node is left: why some get no files."""
        nodes = [node for node in loading.held if node.usable and not loading.gets_files(node)]
        return "".join(f"; {node.disk_problem}" for node in nodes)

    async def _load(self, node: Node, loading: _Loading) -> Replica:
        began_s = time.monotonic()
        client, process = await self._start(node, loading)
        if not node.usable:
            await client.close()
            raise NodeLostError(f"node {node.name} takes no models any more")
        _log.info("loaded a model on node %s in %.1f s", node.name, time.monotonic() - began_s)
        return Replica(node, client, process)

    async def _start(
        self, node: Node, loading: _Loading, split: SplitLoad | None = None
    ) -> tuple[RunnerClient, RemoteProcess]:
        """Start a runner on a node, and load the model there, or the part of it that `split` names."""
        load = await self._local(node, loading)
        client, process = await start_runner(node, self._tls)
        try:
            await loading.turns.enter_async_context(node.turn)
            own = msgspec.structs.replace(
                load, split=split, reserved=self.promised(node), allowed=self.allowed(node)
            )
            await client.load(own, loading.on_progress, stall_timeout_s=loading.stall_timeout_s)
        except BaseException:
            await client.close()
            raise
        return client, process

    async def _local(self, node: Node, loading: _Loading) -> Load:
        """Return the load with the paths of its files on a node, which gets those it lacks."""
        load, paths = loading.load, {}
        for path in _paths(load):
            paths[path] = await self._bring(node, path, loading)
        return msgspec.structs.replace(
            load,
            path=paths[load.path],
            draft=paths.get(load.draft, ""),
            projector=paths.get(load.projector, ""),
            adapters=tuple(msgspec.structs.replace(each, path=paths[each.path]) for each in load.adapters),
        )

    async def _files(self, load: Load) -> dict[str, str]:
        """Return the digests of a load's files by path. Raises StoreError."""
        return {path: await self._digest(Path(path)) for path in _paths(load)}

    async def _digest(self, path: Path) -> str:
        if path.name.startswith(("sha256-", "sha256:")):
            return path.name.replace("-", ":", 1)
        with storage_errors("read", path):
            found = path.stat()
            key = (str(path), found.st_size, found.st_mtime_ns)
            digest = self._digests.get(key)
            if digest is None:
                digest = self._digests[key] = await asyncio.to_thread(file_digest, path)
        return digest

    async def _bring(self, node: Node, path: str, loading: _Loading) -> str:
        """Return the path of a file of the head on a node, copied from nodes that have it if it is not there.

        Raises StoreError if it cannot be copied, or nothing arrives for the `stall_timeout_s` of loading.
        """
        if node.id == self._head:
            return path
        digest, size = loading.files[path], Path(path).stat().st_size
        sources = [
            Source(other.name, other.agent, path if other.id == self._head else "")
            for other, found in loading.held.items()
            if other is not node and digest in found and not other.lost.is_set()
        ]
        copying = asyncio.ensure_future(
            ask(node.agent.fetch.remote(digest, size, sources), node.name, _COPY_TIMEOUT_S)
        )
        done, moved_s, patience_s = 0, time.monotonic(), loading.stall_timeout_s
        try:
            while True:
                finished, _ = await asyncio.wait([copying], timeout=_PROGRESS_S)
                if finished:
                    return _copied(copying, node)
                arrived: int = await ask(node.agent.fetched.remote(digest), node.name, _FACTS_TIMEOUT_S)
                if arrived > done:
                    done, moved_s = arrived, time.monotonic()
                    if loading.on_progress is not None:
                        loading.on_progress(done, size)
                elif patience_s is not None and time.monotonic() - moved_s > patience_s:
                    raise StoreError(f"nothing of {digest} arrived for {patience_s:g} s")
        finally:
            copying.cancel()
            await asyncio.gather(copying, return_exceptions=True)

    # --- inside ---

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self._look()
            except Exception:  # of Ray, while its head restarts
                _log.exception("the nodes of the cluster cannot be listed")

    async def _look(self) -> None:
        """Notice nodes that have come or gone, and ask the others how they are."""
        import ray

        alive = {each["NodeID"]: each for each in await asyncio.to_thread(ray.nodes) if each["Alive"]}
        for id in [id for id in self._nodes if id not in alive]:
            self._lose(self._nodes[id])
        self._refused = {id: why for id, why in self._refused.items() if id in alive}
        for id, each in alive.items():
            if id not in self._nodes and id not in self._joining and id not in self._refused:
                self._joining.add(id)
                self._spawn(self._join(id, each["NodeManagerAddress"]))
        for node in self._nodes.values():
            self._spawn(self._ask_facts(node))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self, id: str, address: str) -> None:
        """Start the agent of a new node, and use the node from now on if it answers."""
        import ray

        agent: Any = None
        try:
            check_privacy(address, encrypted=self._tls is not None)
            agent = actor_on(id, NodeAgent, max_restarts=-1)
            facts: NodeFacts = await ask(agent.facts.remote(), address, _AGENT_TIMEOUT_S)
            check_version(facts)
        except NodeLostError as error:  # it may be there later
            _log.warning("node %s (%s): %s", id[:6], address, error)
            ray.kill(agent)
        except PunaError as error:
            self._refused[id] = str(error)
            _log.warning("node %s (%s) is not used: %s", id[:6], address, error)
        else:
            node = self._nodes[id] = Node(id, address, agent, facts)
            _log.info(
                "node %s at %s has joined: %d processors, %d MiB free",
                node.name,
                address,
                facts.processors,
                facts.available_bytes >> 20,
            )
        finally:
            self._joining.discard(id)

    async def _ask_facts(self, node: Node) -> None:
        if node.asked:
            return
        node.asked = True
        try:
            node.facts = await ask(node.agent.facts.remote(), node.name, _FACTS_TIMEOUT_S)
        except PunaError as error:
            _log.warning("%s", error)
        finally:
            node.asked = False
        if node.facts.leaving and not node.leaving:
            node.leaving = True
            self._spawn(self._see_off(node))

    async def _see_off(self, node: Node) -> None:
        """Drain a node whose operator ends it, and tell it when it may go."""
        await self.drain(node)
        while not node.lost.is_set():
            with contextlib.suppress(PunaError):
                await ask(node.agent.let_go.remote(), node.name, _FACTS_TIMEOUT_S)
                return
            await asyncio.sleep(_LOOK_S)  # until its agent has been started again

    def _lose(self, node: Node) -> None:
        del self._nodes[node.id]
        node.lost.set()
        _log.warning("node %s is lost", node.name)


def _copied(copying: asyncio.Future[str], node: Node) -> str:
    """Return the path that a file was copied to on a node, and note it if its disk failed."""
    try:
        return copying.result()
    except DiskError as error:
        problem = f"node {node.name}: {error}"
        node.note_disk_problem(problem)
        raise DiskError(problem) from error


def _too_little(sizes: ModelSizes, alike: Mapping[str, Sequence[StageNode]]) -> InsufficientMemoryError:
    """Return why a model cannot be divided among nodes, by their kernels."""
    needed = sizes.of(0, len(sizes.weights))
    free = max((sum(node.free_bytes for node in nodes) for nodes in alike.values()), default=0)
    together = "nodes with the same kernels (PUNA_SPLIT_KERNELS)" if len(alike) > 1 else "the cluster's nodes"
    return InsufficientMemoryError(
        f"{together} have too little memory for the model: {needed >> 20} MiB are needed, and {free >> 20} "
        "are free",
        needed,
        free,
    )


def _paths(load: Load) -> list[str]:
    """Return the paths of a load's files."""
    paths = (load.path, load.draft, load.projector, *(each.path for each in load.adapters))
    return list(dict.fromkeys(path for path in paths if path))
