"""Message batches: their requests are answered one after another, at low priority, beside interactive ones.

An interactive request never waits for a batch: the engine prefers it, and a batch's request that keeps
another model out of memory ends and is repeated later.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from puna.errors import (
    AuthenticationError,
    PunaError,
    RequestError,
    ResponseNotFoundError,
    ServerBusyError,
    StoreError,
    shown,
)
from puna.server.anthropic.answering import whole
from puna.server.anthropic.kept_batches import BatchState, Outcome, StoredBatch
from puna.server.anthropic.reply import MessageReply, MessageWriter
from puna.server.anthropic.wire import MessagesRequest
from puna.server.http import connections, logs
from puna.server.http.bodies import body_of
from puna.server.http.connections import Caller
from puna.server.http.replies import anthropic_error
from puna.server.jobs.answer import AnswerBuilder
from puna.server.jobs.documents import read_files
from puna.server.jobs.jobs import job, one_job
from puna.server.jobs.service import Service

#: Requests of all batches at the same time.
_PARALLEL: Final = 4
#: Batches under way of one owner, and batches in all.
_MAX_RUNNING: Final = 16
_MAX_ALL: Final = 1000
#: How often a request looks whether it may have a model loaded, or whether the queue has room.
_LOOK_S: Final = 1.0
#: Marks the batches of a client in queues, where they are a client of their own.
_CLIENT: Final = "batches of "

_log = logging.getLogger(__name__)


class Batches:
    """The batches of a model store. Only one server at a time works on them."""

    def __init__(self, backend: Service) -> None:
        self._backend = backend
        self._root = backend.store.root / "batches"
        self._max_bytes = backend.settings.responses_bytes
        self._all: dict[str, StoredBatch] = {}
        self._lock = -1  # descriptor of the file that is locked while this server works on the batches
        self._waiting: deque[StoredBatch] = deque()  # those with requests that nobody works on
        self._tasks: dict[str, set[asyncio.Task[Any]]] = {}  # the work on each batch
        self._news = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []

    # --- for the server ---

    def resume(self) -> None:
        """Go on with the batches of an earlier server."""
        if self._root.is_dir():
            try:
                self._open()
            except (PunaError, OSError) as error:
                _log.warning("message batches wait: %s", error)

    async def close(self) -> None:
        """End the work; the next server goes on with it."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        for batch in self._all.values():
            batch.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # --- for routes ---

    async def create(self, caller: Caller, requests: Sequence[dict[str, Any]]) -> StoredBatch:
        """Store a batch, and begin to work on it. Raises RequestError, ServerBusyError and StoreError."""
        self._open()
        running = sum(not one.has_ended and one.state.owner == caller.digest for one in self._all.values())
        if running >= _MAX_RUNNING:
            raise ServerBusyError(f"{running} batches are under way, the limit for one client: wait for one")
        self._make_room(sum(len(msgspec.json.encode(request)) + 1 for request in requests))
        state = BatchState(
            id=f"msgbatch_{secrets.token_hex(16)}",
            owner=caller.digest,
            key=caller.key,
            client=caller.client,
            count=len(requests),
            created_s=time.time(),
        )
        batch = await asyncio.to_thread(StoredBatch.create, self._root, state, requests)
        self._all[batch.state.id] = batch
        self._work_on(batch)
        return batch

    def get(self, id: str, owner: str) -> StoredBatch:
        """Return a batch. Raises ResponseNotFoundError, also for another owner."""
        if self._root.is_dir():
            self._open()
        batch = self._all.get(id)
        if batch is None or batch.state.owner != owner or batch.is_too_old:
            raise ResponseNotFoundError(f"message batch {shown(id)} not found")
        return batch

    def of(self, owner: str) -> list[StoredBatch]:
        """Return the batches of `owner`, newest first."""
        if self._root.is_dir():
            self._open()
        found = [one for one in self._all.values() if one.state.owner == owner and not one.is_too_old]
        return sorted(found, key=lambda batch: -batch.state.created_s)

    def cancel(self, batch: StoredBatch) -> None:
        """End the requests of a batch that have no result yet."""
        if batch.has_ended or batch.state.cancelled_s is not None:
            return
        batch.state.cancelled_s = time.time()
        batch.save()
        for task in self._tasks.get(batch.state.id, ()):
            task.cancel()

    def delete(self, batch: StoredBatch) -> None:
        """Delete a batch. Raises RequestError for one that has not ended."""
        if not batch.has_ended:
            raise RequestError("a batch under way cannot be deleted: cancel it, and wait for its end")
        del self._all[batch.state.id]
        batch.delete()

    # --- inside ---

    def _open(self) -> None:
        """Take the batches of the store, and begin to work, unless that is done.

        Raises ServerBusyError if another server has them, RequestError if none are kept, and StoreError.
        """
        if self._lock >= 0:
            return
        if not self._max_bytes:
            raise RequestError("this server keeps no batches (PUNA_RESPONSES_MB=0)")
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"{self._root}: batches cannot be kept: {error.strerror or error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._all = {batch.state.id: batch for batch in StoredBatch.all_in(self._root)}
        except BlockingIOError:
            os.close(lock)
            raise ServerBusyError("another server of this model store works on its batches") from None
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        self._workers = [asyncio.create_task(self._work()) for _ in range(_PARALLEL)]
        for batch in self._all.values():
            if not batch.has_ended:
                self._work_on(batch)

    def _make_room(self, size: int) -> None:
        """Delete the oldest batches that have ended until there is room. Raises RequestError."""
        ended = sorted(
            (one for one in self._all.values() if one.has_ended), key=lambda one: one.state.created_s
        )
        while len(self._all) >= _MAX_ALL or self._total_bytes + size > self._max_bytes:
            if not ended:
                raise RequestError(
                    f"the batch does not fit beside the {len(self._all)} under way: all may have "
                    f"{self._max_bytes >> 20} MB (PUNA_RESPONSES_MB) and be {_MAX_ALL:,}"
                )
            self.delete(ended.pop(0))
        for batch in ended:
            if batch.is_too_old:
                self.delete(batch)

    @property
    def _total_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self._all.values())

    def _work_on(self, batch: StoredBatch) -> None:
        self._tasks[batch.state.id] = set()
        self._waiting.append(batch)
        self._news.set()

    async def _work(self) -> None:
        """Answer requests, of each batch in turn."""
        while True:
            if not self._waiting:
                self._news.clear()
                await self._news.wait()
                continue
            batch = self._waiting.popleft()
            try:
                request = batch.next_request()
                if request is not None:
                    self._waiting.append(batch)
                    await self._settle(batch, request)
                self._end_if_done(batch)
            except (PunaError, OSError, ValueError) as error:
                # The disk fails: the next server, or nobody, can go on with the batch.
                _log.error("the batch %s stops: %s", batch.state.id, error)
                with contextlib.suppress(ValueError):
                    self._waiting.remove(batch)

    def _end_if_done(self, batch: StoredBatch) -> None:
        if not batch.has_ended and batch.counts.total() >= batch.state.count:
            batch.end()
            self._tasks.pop(batch.state.id, None)
            _log.info("the batch %s has ended: %s", batch.state.id, dict(batch.counts))

    async def _settle(self, batch: StoredBatch, request: dict[str, Any]) -> None:
        """Write the result of a request."""
        outcome, result = await self._result(batch, request)
        size = len(msgspec.json.encode(result))
        if self._total_bytes + size > self._max_bytes:
            limit = f"the results of all batches have reached {self._max_bytes >> 20} MB (PUNA_RESPONSES_MB)"
            outcome, result = "errored", {"error": anthropic_error(RequestError(limit))}
        batch.add_result(request["custom_id"], outcome, result)

    async def _result(self, batch: StoredBatch, request: dict[str, Any]) -> tuple[Outcome, dict[str, Any]]:
        """Return how a request ended. Work that gives way to others begins again."""
        while True:
            if batch.state.cancelled_s is not None:
                return "canceled", {}
            if time.time() >= batch.expires_s:
                return "expired", {}
            task = asyncio.create_task(self._answer(batch, request["params"]))
            tasks = self._tasks[batch.state.id]
            tasks.add(task)
            try:
                async with asyncio.timeout(batch.expires_s - time.time()):
                    return "succeeded", {"message": msgspec.to_builtins(await task)}
            except ServerBusyError:
                await asyncio.sleep(_LOOK_S)
            except TimeoutError:
                continue  # it has expired
            except asyncio.CancelledError:
                if not task.cancelled() or _is_cancelled():
                    raise  # the server ends
            except Exception as error:
                if not isinstance(error, PunaError):
                    _log.exception("a request of a batch failed")
                return "errored", {"error": anthropic_error(error)}
            finally:
                tasks.discard(task)
                task.cancel()

    async def _answer(self, batch: StoredBatch, params: dict[str, Any]) -> MessageReply:
        """Answer a request in the name of the key that made the batch."""
        state, backend = batch.state, self._backend
        connections.current.set(Caller(_CLIENT + state.client, state.key, state.owner, ("read", "generate")))
        logs.current.set(logs.RequestFacts(id=state.id))
        if state.owner and not backend.settings.keyring.has(state.owner):
            raise AuthenticationError("the key that made the batch was revoked", known=False)
        body = body_of(params, MessagesRequest)
        if body.stream:
            raise RequestError("a request of a batch cannot be streamed: leave out stream")
        body.priority = "batch"
        await read_files(backend, body.files())
        todo = one_job(await job(backend, body.spec()))
        path = str(todo.order.model.runnable_path())
        while not any(one.path == path for one in backend.fleet.loaded()) and self._others_wait():
            await asyncio.sleep(_LOOK_S)
        task = asyncio.current_task()
        assert task is not None
        todo = replace(todo, order=replace(todo.order, give_way=task.cancel))
        writer = MessageWriter(body.model, body.stop_sequences, marks_cache=body.marks_cache)
        return await whole(backend, writer, AnswerBuilder(thinking=body.shows_thinking), todo)

    def _others_wait(self) -> bool:
        """Whether there are interactive requests, whose models must not leave memory for a batch."""
        return any(not one.client.startswith(_CLIENT) for one in self._backend.requests)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
