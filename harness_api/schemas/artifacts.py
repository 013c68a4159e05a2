"""Artifacts on the wire."""

from __future__ import annotations

from harness_api.schemas.base import Output, Time


class ArtifactLinks(Output):
    """Where the bytes are."""

    content: str


class ArtifactView(Output):
    """What is known of an artifact; its bytes are read from `links.content`."""

    id: str
    run_id: str | None
    name: str
    media_type: str
    sha256: str
    size_bytes: int
    created_at: Time
    links: ArtifactLinks
