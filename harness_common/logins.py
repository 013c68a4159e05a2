"""The three database logins: who owns the schema, who serves one tenant at a time, who serves all.

`owner` runs migrations. `api` is bound by row-level security and sees one tenant in a transaction.
`system` is for workers and the scheduler, which serve every tenant. One URL alone is enough: it is
the owner's, and the two others are derived from it. See docs/security.md.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Final, Literal
from urllib.parse import quote, unquote, urlsplit, urlunsplit

Login = Literal["owner", "api", "system"]
ROLES: Final[dict[Login, str]] = {"api": "harness_api", "system": "harness_system"}
"""The roles that rights and policies are given to. A user whose name begins with one of them and an
underscore (`harness_api_2`) is a member of it.
"""


def login_of(database_url: str) -> Login:
    """Tell by its user whose login a URL is; whoever is neither of the two roles is the owner."""
    user = unquote(urlsplit(database_url).username or "")
    for login, role in ROLES.items():
        if user == role or user.startswith(f"{role}_"):
            return login
    return "owner"


def derive(database_url: str, login: Login) -> str:
    """Turn the owner's URL into that of another login, whose password follows from the owner's.

    Nothing leads back from it. Without a password (a socket, `trust`) there is none to derive.
    """
    if login == "owner":
        return database_url
    parts = urlsplit(database_url)
    user = ROLES[login]
    if parts.password:
        secret = hmac.digest(unquote(parts.password).encode(), user.encode(), hashlib.sha256)
        user += ":" + base64.urlsafe_b64encode(secret).decode().rstrip("=")
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{user}@{host}"))


def user_and_password(database_url: str) -> tuple[str, str | None]:
    """Return what a URL logs in with."""
    parts = urlsplit(database_url)
    password = parts.password
    return unquote(parts.username or ""), unquote(password) if password else None


def without_password(database_url: str) -> str:
    """Return the URL as it may be shown."""
    parts = urlsplit(database_url)
    host = parts.netloc.rpartition("@")[2]
    user = quote(unquote(parts.username or ""))
    return urlunsplit(parts._replace(netloc=f"{user}@{host}" if user else host))
