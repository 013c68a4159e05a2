"""What `harness doctor` looks at of the parts that can be replaced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness_api.cli.finding import Finding, State
from harness_common.core.errors import HarnessError
from harness_common.settings import Settings

if TYPE_CHECKING:
    import psycopg

_WORDS = "Memories are found by their words alone."


def vectors(conn: psycopg.Connection) -> Finding:
    """Check that Postgres can compare vectors, or could."""
    row = conn.execute(
        "SELECT (SELECT extversion FROM pg_extension WHERE extname = 'vector'), "
        "(SELECT default_version FROM pg_available_extensions WHERE name = 'vector')"
    ).fetchone()
    assert row is not None
    installed, available = row
    if installed:
        return Finding("vectors", State.OK, f"the extension vector {installed} is installed")
    if available:
        advice = f"{_WORDS} Let a superuser run: CREATE EXTENSION vector"
        return Finding("vectors", State.WARN, "the extension vector is not installed", advice)
    advice = f"{_WORDS} Install pgvector on the server, then: CREATE EXTENSION vector"
    return Finding("vectors", State.WARN, "this Postgres does not have pgvector", advice)


def embeddings(config: Settings) -> Finding:
    """Check that facts can be turned into vectors."""
    import httpx

    from harness_common.embeddings.registry import embedder_of

    try:
        found = embedder_of(config, httpx.AsyncClient())
    except HarnessError as error:
        return Finding("embeddings", State.FAIL, error.message, "See docs/memory.md.")
    if found is None:
        off = config.embeddings.provider == "none"
        advice = f"{_WORDS} Install harness[embedded], or set HARNESS_EMBEDDINGS__PROVIDER."
        text = "turned off" if off else "no local model is installed"
        return Finding("embeddings", State.OK if off else State.WARN, text, advice)
    return Finding("embeddings", State.OK, found.name)


def plugins(config: Settings) -> Iterator[Finding]:
    """Check the plugins that are installed here."""
    from harness_common.plugins import LEFT_OUT, discover

    found = [one for one in discover(config.plugins) if one.problem != LEFT_OUT]
    for one in found:
        if one.problem:
            advice = "It brings nothing until that is mended; workers go on without it."
            yield Finding("plugin", State.WARN, f"{one.name}: {one.problem}", advice)
        else:
            assert one.plugin is not None
            parts = one.plugin.parts().items()
            text = ", ".join(f"{kind} {' '.join(names)}" for kind, names in parts)
            yield Finding("plugin", State.OK, f"{one.name} {one.version}: {text or 'nothing'}")
