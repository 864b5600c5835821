"""A cluster in this process: actors are objects whose methods run in a loop on a thread.

What they are sent, and what they answer, is pickled on the way, and arrays arrive read-only, as
from Ray. Actors can be killed, and be cut off.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import numpy as np
from plait.devices.errors import DeviceLostError
from plait.scheduler.ray.actors import ActorPlacement, OnResult
from plait.scheduler.ray.nodes import INLINE_LIMIT

os.environ.setdefault(INLINE_LIMIT, str(64 << 20))  # as nodes are started that are told so


class FakePending:
    def __init__(self, future: Future[bytes]) -> None:
        self._future = future

    def on_result(self, callback: OnResult) -> None:
        def done(future: Future[bytes]) -> None:
            error = future.exception()
            if error is None:
                callback(unpacked(future.result()), None)
            else:
                callback(None, error)

        self._future.add_done_callback(done)


class FakeActor:
    """Attributes: `calls`, the methods called so far; `made`, the object."""

    def __init__(self, kind: type, arguments: tuple[Any, ...], seed: int | None) -> None:
        self._late = None if seed is None else random.Random(seed)
        self.calls: list[str] = []
        self.made = kind(*arguments)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self._dead = False
        self._cut = False
        self._pending: set[Future[bytes]] = set()

    def call(self, method: str, *arguments: Any) -> FakePending:
        self.calls.append(method if method != "ask_devices" else f"{method} {arguments[0]}")
        future: Future[bytes] = Future()
        packed = pickle.dumps(arguments, protocol=5)
        with self._lock:
            dead, cut = self._dead, self._cut
            self._pending.add(future)
        if dead:
            self._fail(future)
        elif not cut:
            asyncio.run_coroutine_threadsafe(self._run(method, packed, future), self._loop)
        return FakePending(future)

    def kill(self) -> None:
        with self._lock:
            if self._dead:
                return
            self._dead = True
            pending = list(self._pending)
        for future in pending:
            self._fail(future)
        self.made.close()  # which tells the loop what has ended
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Let nothing through any more, without a word."""
        self._cut = True

    async def _run(self, method: str, packed: bytes, future: Future[bytes]) -> None:
        if self._late is not None and method == "command_devices":
            for _ in range(self._late.randrange(4)):
                await asyncio.sleep(0)  # others overtake it
        try:
            answer = await getattr(self.made, method)(*unpacked(packed))
            result, error = pickle.dumps(answer, protocol=5), None
        except Exception as raised:
            result, error = b"", raised
        with self._lock:
            self._pending.discard(future)
            if self._cut:
                return
        with suppress(Exception):  # it was failed meanwhile
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    async def _stop(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop.call_soon(self._loop.stop)

    def _fail(self, future: Future[bytes]) -> None:
        with suppress(Exception):  # it has an answer
            future.set_exception(DeviceLostError("the actor died"))


class FakeEngine:
    """Attributes: `actors`, those started, the latest last; `full`, whether no more are; `dead`,
    the number of next actors that die at once. With a seed, calls overtake each other.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self.actors: list[FakeActor] = []
        self.full = False
        self.dead = 0

    def start(self, kind: type, *arguments: Any, placing: ActorPlacement) -> FakeActor:
        self.actors.append(FakeActor(kind, arguments, self.seed))
        if self.full:
            self.actors[-1].cut()
        if self.dead:
            self.dead -= 1
            self.actors[-1].kill()
        return self.actors[-1]

    def put(self, value: Any) -> Any:
        return value

    def dump(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"id": "1", "labels": {"gpu": "a"}, "resources": {}}]

    def leave(self) -> None:
        for actor in self.actors:
            actor.kill()


def unpacked(packed: bytes) -> Any:
    """Return what was packed; its arrays are read-only."""
    return _frozen(pickle.loads(packed))


def _frozen(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
        return value
    if isinstance(value, tuple):
        made = [_frozen(one) for one in value]
        return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
    if isinstance(value, list):
        return [_frozen(one) for one in value]
    if isinstance(value, dict):
        return {key: _frozen(one) for key, one in value.items()}
    return value
