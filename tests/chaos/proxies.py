"""Proxies in front of Postgres and Valkey, on an event loop in a thread of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

from tests.fakes.cut_proxy import CutProxy, Mode

T = TypeVar("T")


class Proxies:
    """Cut proxies by name; every method may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="proxies")
        self._proxies: dict[str, CutProxy] = {}
        self._thread.start()

    def add(self, name: str, port: int) -> int:
        """Start a proxy in front of a loopback port; returns its own port."""

        async def start() -> int:
            proxy = CutProxy("127.0.0.1", port)
            await proxy.__aenter__()
            self._proxies[name] = proxy
            return proxy.port

        return self._await(start())

    def names(self, prefix: str) -> list[str]:
        """List the proxies of one kind (`postgres` or `valkey`)."""
        return sorted(n for n in self._proxies if n.startswith(prefix))

    def begin(self, name: str, mode: Mode) -> None:
        """Let a proxy pass, drop replies or swallow everything from now on."""
        self._call(lambda: setattr(self._proxies[name], "mode", mode))

    def heal(self, name: str) -> None:
        """Reset what is open (bytes were lost in it) and pass again."""

        def heal() -> None:
            proxy = self._proxies[name]
            proxy.on_request = None
            proxy.rst()
            proxy.mode = "pass"

        self._call(heal)

    def lose_reply_of(
        self, name: str, marker: bytes, hit: threading.Event, *, following: bool = False
    ) -> None:
        """Drop replies from the next request on that holds `marker`, or from the one after that
        (`following`); `hit` is set then.
        """

        def arm() -> None:
            proxy = self._proxies[name]
            passed = not following

            def look(data: bytes) -> None:
                nonlocal passed
                if passed and (following or marker in data):
                    proxy.mode = "drop_replies"
                    proxy.on_request = None
                    hit.set()
                passed = passed or marker in data

            proxy.on_request = look

        self._call(arm)

    def close(self) -> None:
        """Stop every proxy and the loop."""

        async def stop() -> None:
            for proxy in self._proxies.values():
                await proxy.__aexit__()

        self._await(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _call(self, change: Callable[[], None]) -> None:
        async def run() -> None:
            change()

        self._await(run())

    def _await(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)
