"""Artifacts: what they are, and their bytes, which a browser must never run."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final
from urllib.parse import quote

from starlette.responses import Response

from harness_api.auth import Caller, requires
from harness_api.deps import Use
from harness_api.paging import IdCursor, Limit, id_of, page
from harness_api.routes.ids import ArtifactId, RunId
from harness_api.routing import new_router
from harness_api.schemas.artifacts import ArtifactLinks, ArtifactView
from harness_api.schemas.base import Page
from harness_common.core.errors import NotFound
from harness_common.core.ids import encode
from harness_common.store.artifacts import plain_digest, read_bytes
from harness_common.store.connection import Row
from harness_common.store.run_reads import list_artifacts, read_artifact_row

router = new_router("/v1", "artifacts")

CanRead = Annotated[Caller, requires("artifacts:read")]
_MEDIA_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,60}/[A-Za-z0-9!#$&^_.+-]{1,60}")
_BYTES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The bytes.",
        "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def artifact_view(row: Row) -> ArtifactView:
    """Show an artifact."""
    shown = encode("artifact", row["id"])
    return ArtifactView(
        id=shown,
        run_id=encode("run", row["run_id"]) if row["run_id"] else None,
        name=row["name"],
        media_type=row["media_type"],
        sha256=plain_digest(row),
        size_bytes=row["size_bytes"],
        created_at=row["created_at"],
        links=ArtifactLinks(content=f"/v1/artifacts/{shown}/content"),
    )


@router.get(
    "/runs/{run_id}/artifacts", operation_id="listArtifacts", response_model=Page[ArtifactView]
)
async def get_artifacts(
    run_id: RunId, services: Use, caller: CanRead, limit: Limit = 50, cursor: IdCursor = None
) -> Page[ArtifactView]:
    """List the artifacts of a run, newest first."""
    rows = await list_artifacts(
        services.db, caller.tenant_id, run_id, before=id_of(cursor), limit=limit + 1
    )
    data, next_cursor = page(rows, limit, artifact_view, "id")
    return Page(data=data, next_cursor=next_cursor)


@router.get("/artifacts/{artifact_id}", operation_id="getArtifact", response_model=ArtifactView)
async def get_artifact(artifact_id: ArtifactId, services: Use, caller: CanRead) -> ArtifactView:
    """Read what is known of an artifact."""
    return artifact_view(await read_artifact_row(services.db, caller.tenant_id, artifact_id))


@router.get(
    "/artifacts/{artifact_id}/content",
    operation_id="getArtifactContent",
    response_class=Response,
    responses=_BYTES,
)
async def get_content(artifact_id: ArtifactId, services: Use, caller: CanRead) -> Response:
    """Read the bytes of an artifact, always as an attachment."""
    row = await read_artifact_row(services.db, caller.tenant_id, artifact_id)
    try:
        data = await read_bytes(services.db, services.blobs, caller.tenant_id, row)
    except FileNotFoundError:
        raise NotFound(
            "the bytes of this artifact are not on this machine; is HARNESS_DATA_DIR shared?",
            code="ARTIFACT_BYTES_MISSING",
        ) from None
    kind = row["media_type"] if _MEDIA_TYPE.fullmatch(row["media_type"]) else None
    return Response(
        data,
        headers={
            "Content-Type": kind or "application/octet-stream",
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(row['name'], safe='')}",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "sandbox; default-src 'none'",
            "Cache-Control": "private, max-age=31536000, immutable",
            "ETag": f'"{plain_digest(row)}"',
        },
    )
