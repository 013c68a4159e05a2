"""The files that pages load: read once, named with their digest, cached for good by browsers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from harness_common.core.errors import NotFound

FOLDER: Final = Path(__file__).parent / "static"
_KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
router = APIRouter(prefix="/console/static", include_in_schema=False)


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    kind: str
    digest: str


def _read() -> dict[str, _File]:
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in _KINDS:
            body = path.read_bytes()
            digest = hashlib.sha256(body).hexdigest()[:16]
            found[path.relative_to(FOLDER).as_posix()] = _File(body, _KINDS[path.suffix], digest)
    return found


_FILES: Final = _read()


def url_of(name: str) -> str:
    """Return where a page finds a file; an unknown name is an error."""
    return f"/console/static/{name}?v={_FILES[name].digest}"


@router.get("/{name:path}")
async def get_file(name: str, request: Request) -> Response:
    """Answer with a file."""
    file = _FILES.get(name)
    if file is None:
        raise NotFound(f"no file {name[:100]}")
    fresh = request.query_params.get("v") == file.digest
    age = "public, max-age=31536000, immutable" if fresh else "no-cache"
    return Response(file.body, media_type=file.kind, headers={"Cache-Control": age})
