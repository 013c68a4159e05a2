"""Flower's pages, fetched for people who are logged in: `routes/flower.py` serves them at /flower.

Flower itself knows no tenants and no logins. It listens where nobody else reaches it, and only what
is named here goes either way: no cookie, no key, no header of the browser's own making.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

import httpx
import structlog

from harness_common.core.errors import Permanent
from harness_common.settings import Settings

log = structlog.get_logger()

PREFIX: Final = "/flower"
USER: Final = "harness"
MAX_FORM_BYTES: Final = 64 * 1024
MAX_PAGE_BYTES: Final = 16 * 1024 * 1024
TABLE: Final = f"{PREFIX}/tasks/datatable"
"""The one path that is posted to: the table of tasks asks for its rows so."""
_ASKED: Final = ("accept", "accept-language", "if-none-match", "if-modified-since", "content-type")
_ANSWERED: Final = (
    *("content-type", "content-length", "etag", "last-modified", "cache-control", "expires"),
    *("vary", "location"),
)
_TIMEOUT: Final = httpx.Timeout(15.0, connect=2.0, pool=2.0)
_LIMITS: Final = httpx.Limits(max_connections=16, max_keepalive_connections=4)


class FlowerAway(Permanent):
    """Flower is not set up, or does not answer. Nothing depends on it."""

    code = "FLOWER_AWAY"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it goes on to Flower."""

    method: str
    path: bytes
    """As it came, percent-encoded; begins with `PREFIX`."""
    query: bytes
    headers: Mapping[str, str]
    body: bytes


class Upstream:
    """Where Flower is. `None` as its address says that there is none."""

    def __init__(self, base: httpx.URL | None, client: httpx.AsyncClient) -> None:
        self._base = base
        self._client = client

    @contextlib.asynccontextmanager
    async def ask(self, asked: Asked) -> AsyncIterator[httpx.Response]:
        """Send a request on; its answer's body is still to be read. Raises `FlowerAway`."""
        if self._base is None:
            raise FlowerAway(
                "Flower is not set up. Start it with `harness flower`, and tell the API where it "
                "is with HARNESS_FLOWER_URL."
            )
        target = asked.path + (b"?" + asked.query if asked.query else b"")
        headers = {name: asked.headers[name] for name in _ASKED if name in asked.headers}
        request = self._client.build_request(
            asked.method,
            self._base.copy_with(raw_path=target),
            headers={**headers, "accept-encoding": "identity"},
            content=asked.body or None,
        )
        try:
            answer = await self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            log.warning("flower.away", error=f"{type(error).__name__}: {error}"[:200])
            raise FlowerAway(
                f"Flower does not answer on {self._base} ({type(error).__name__}). Runs go on "
                "without it; see whether `harness flower` runs there, and its log."
            ) from error
        try:
            if answer.status_code == httpx.codes.UNAUTHORIZED:
                raise FlowerAway(
                    "Flower refused the API: HARNESS_FLOWER__PASSWORD is not the same for both."
                )
            if int(answer.headers.get("content-length", 0)) > MAX_PAGE_BYTES:
                raise FlowerAway(f"Flower's answer is larger than {MAX_PAGE_BYTES} bytes.")
            yield answer
        finally:
            await answer.aclose()


@contextlib.asynccontextmanager
async def upstream_of(config: Settings) -> AsyncIterator[Upstream]:
    """Keep a few connections to Flower while the block lasts."""
    base, password = address(config.flower_url), config.flower.password
    auth = None if password is None else (USER, password.get_secret_value())
    async with httpx.AsyncClient(
        auth=auth, timeout=_TIMEOUT, limits=_LIMITS, trust_env=False
    ) as client:
        yield Upstream(base, client)


def address(text: str | None) -> httpx.URL | None:
    """Read `flower_url`; ends the process when it is no address of a server."""
    if text is None:
        return None
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL("")
    own_path = url.path.rstrip("/") in {"", PREFIX}
    if url.scheme not in {"http", "https"} or not url.host or url.userinfo or not own_path:
        raise SystemExit(
            f"HARNESS_FLOWER_URL is {text!r}; set it to http://host:port. Its pages are below "
            f"{PREFIX} there, and the password is HARNESS_FLOWER__PASSWORD."
        )
    return httpx.URL(scheme=url.scheme, host=url.host, port=url.port)


def headers_back(answer: httpx.Response) -> dict[str, str]:
    """Return what of an answer's headers is passed on."""
    return {name: answer.headers[name] for name in _ANSWERED if name in answer.headers}


async def body_back(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Give an answer's body as it comes; too much of it breaks off."""
    size = 0
    async for part in answer.aiter_raw():
        size += len(part)
        if size > MAX_PAGE_BYTES:
            raise FlowerAway(f"Flower's answer is larger than {MAX_PAGE_BYTES} bytes.")
        yield part
