"""The tools of the digest: they ask the code-hosting server that `PR_SERVER` names.

Workers load this module by `HARNESS_WORKER__TOOLS='["examples.pr_digest.tools"]'`.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Annotated

import httpx
from pydantic import Field

from harness_common.core.message import Json
from harness_worker.sdk import Transient, tool

Repo = Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$", description="OWNER/NAME.")]


@cache
def _client() -> httpx.AsyncClient:
    """Return the worker's one client: making one costs more than a request."""
    return httpx.AsyncClient(base_url=os.environ["PR_SERVER"], timeout=60)


async def _ask(method: str, path: str, **more: Json) -> Json:
    """Make one request; a server that is away or has trouble is worth another attempt."""
    try:
        answer = await _client().request(method, path, **more)
    except httpx.TransportError as error:
        raise Transient(f"the server does not answer: {error!r}") from error
    if answer.status_code >= 500:
        raise Transient(f"the server answers {answer.status_code}")
    return answer.raise_for_status().json()


@tool(effect="read", name="list_prs")
async def list_prs(repo: Repo) -> Json:
    """List the open pull requests of a repository: number and title of each."""
    return await _ask("GET", f"/repos/{repo}/pulls")


@tool(effect="read", name="fetch_pr")
async def fetch_pr(repo: Repo, number: int) -> Json:
    """Read one pull request: author, label, size, description."""
    return await _ask("GET", f"/repos/{repo}/pulls/{number}")


@tool(effect="read", name="fetch_checks")
async def fetch_checks(repo: Repo, number: int) -> Json:
    """Read whether the checks of one pull request pass."""
    return await _ask("GET", f"/repos/{repo}/pulls/{number}/checks")


@tool(effect="write", name="post_digest")
async def post_digest(repo: Repo, text: str) -> Json:
    """Publish a digest of the pull requests of a repository."""
    return await _ask("POST", f"/repos/{repo}/digests", json={"text": text})
