"""The one HTTP client of a worker process, and the errors its transport can raise.

The runtime builds it once with `shared_client` and hands it to `ModelRegistry`; no model opens a
client of its own. The transport is aiohttp's, because httpx's own pool slows down with thousands of
open streams.
"""

from __future__ import annotations

import ssl
from functools import cache
from typing import Final

import aiohttp
import httpx
from httpx_aiohttp import HttpxAiohttpClient

CONNECT_TIMEOUT_S: Final = 10.0
KEEPALIVE_S: Final = 20.0
"""Shorter than the idle limits of usual load balancers, so that we seldom send on a connection they
just closed.
"""

TRANSPORT_ERRORS: Final = (httpx.TransportError, aiohttp.ClientError, OSError)
"""Everything that a broken connection raises. aiohttp's own errors are there because httpx_aiohttp
maps only some; `TimeoutError` is an `OSError`.
"""


def shared_client() -> httpx.AsyncClient:
    """Build the client that all models of a process share; whoever builds it closes it.

    It belongs to the event loop of its first request. The number of connections is not limited
    here, because the worker's concurrency already is, and a queue in the pool would eat the
    first-token time. Reading has no timeout of its own: each call brings its deadlines.
    """
    return HttpxAiohttpClient(
        verify=_trusted(),
        # aiohttp reads 0 as "no limit"; None would give its default of 100.
        limits=httpx.Limits(max_connections=0, keepalive_expiry=KEEPALIVE_S),
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
        follow_redirects=False,
    )


@cache
def _trusted() -> ssl.SSLContext:
    """Read the certificates that are trusted once in a process: it takes a tenth of a second."""
    return httpx.create_ssl_context()
