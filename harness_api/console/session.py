"""The session of a person in the console: a signed cookie that names an API key.

The cookie holds the key's public id, a random id of the session and when it was made, signed with a
key derived from the pepper; never the key's secret. The API key is looked up at every request, so
that a revoked one ends the session within the keyring's few seconds.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Final

from fastapi import Response
from itsdangerous import BadData, URLSafeTimedSerializer

COOKIE: Final = "harness_session"
_PURPOSE: Final = "harness console session"


@dataclass(frozen=True, slots=True)
class Session:
    """What the cookie says."""

    public_id: str
    """The public part of the API key that was given at the login."""
    id: str


class Sessions:
    """Writes and reads session cookies."""

    def __init__(self, pepper: bytes, max_age_s: int) -> None:
        self._key = hmac.digest(pepper, _PURPOSE.encode(), hashlib.sha256)
        self._signer = URLSafeTimedSerializer(
            self._key,
            salt="cookie",
            signer_kwargs={"digest_method": hashlib.sha256, "key_derivation": "hmac"},
        )
        self.max_age_s = max_age_s

    def begin(self, response: Response, public_id: str, *, https: bool) -> None:
        """Set the cookie of a new session."""
        value = str(self._signer.dumps([public_id, secrets.token_urlsafe(16)]))
        response.set_cookie(
            COOKIE,
            value,
            max_age=self.max_age_s,
            path="/",
            httponly=True,
            samesite="lax",
            secure=https,
        )

    def end(self, response: Response) -> None:
        """Take the cookie back."""
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="lax")

    def read(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie; None when it is missing, forged or too old."""
        if not cookie or len(cookie) > 1000:
            return None
        try:
            data = self._signer.loads(cookie, max_age=self.max_age_s)
        except BadData:
            return None
        match data:
            case [str(public_id), str(session_id)]:
                return Session(public_id, session_id)
        return None

    def token(self, session: Session) -> str:
        """Return the token that forms of this session carry against cross-site requests."""
        words = f"csrf.{session.public_id}.{session.id}".encode()
        return hmac.digest(self._key, words, hashlib.sha256).hex()

    def is_token(self, session: Session, given: str) -> bool:
        """Compare a token in constant time."""
        return hmac.compare_digest(self.token(session).encode(), given.encode())
