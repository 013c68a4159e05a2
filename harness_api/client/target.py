"""Which server to talk to, and with which key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from harness_api.cli.dev_file import DEFAULT_DATA_DIR, read_dev_file
from harness_common.core.errors import Invalid

URL_VARIABLE = "HARNESS_API_URL"
KEY_VARIABLE = "HARNESS_API_KEY"


@dataclass(frozen=True, slots=True)
class Target:
    """A server and a key for it."""

    base_url: str
    """Without a slash at its end."""
    api_key: str | None = field(default=None, repr=False)

    @property
    def is_loopback(self) -> bool:
        """Tell whether it is on this machine, where no proxy is wanted."""
        return httpx.URL(self.base_url).host in {"localhost", "127.0.0.1", "::1"}


def find_target(
    base_url: str | None = None,
    api_key: str | None = None,
    env: Mapping[str, str] = os.environ,
) -> Target:
    """Take URL and key from the arguments, else from `HARNESS_API_URL` and `HARNESS_API_KEY`, else
    from a `harness dev` that runs over the data folder.

    The key of `harness dev` is sent to that server only. Raises `Invalid`.
    """
    dev_url, dev_key_file = _find_dev(env)
    url = base_url or env.get(URL_VARIABLE) or dev_url
    if url is None:
        raise Invalid(
            f"No Harness API is known. Start one with `harness dev`, or set {URL_VARIABLE} and "
            f"{KEY_VARIABLE}. (HARNESS_DATA_DIR tells where to look for a running `harness dev`.)",
            code="NO_SERVER",
        )
    url = _checked(url)
    key = api_key or env.get(KEY_VARIABLE)
    if key is None and dev_key_file is not None and url == dev_url and dev_key_file.exists():
        key = dev_key_file.read_text(encoding="utf-8")
    return Target(url, _checked_key(key) if key is not None else None)


def _find_dev(env: Mapping[str, str]) -> tuple[str | None, Path | None]:
    found = read_dev_file(Path(env.get("HARNESS_DATA_DIR") or DEFAULT_DATA_DIR))
    if found is None:
        return None, None
    return found["api_url"], Path(found["admin_key_file"])


def _checked(text: str) -> str:
    try:
        url = httpx.URL(text.strip())
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in {"http", "https"} or not url.host:
        raise Invalid(
            f"{text!r} is not the URL of an API; expected something like http://127.0.0.1:8700",
            code="BAD_URL",
            field=URL_VARIABLE,
        )
    return str(url).rstrip("/")


def _checked_key(text: str) -> str:
    key = text.strip()
    if not key.isascii() or not key.isprintable() or " " in key or not key:
        raise Invalid(
            "The API key has characters that no key has; set it again.",
            code="BAD_KEY",
            field=KEY_VARIABLE,
        )
    return key
