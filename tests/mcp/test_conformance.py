"""The official conformance suite of the protocol against our client (pool, connection, bridge)."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mcp.node_servers import node

HERE = Path(__file__).parent
SCENARIOS = (
    "initialize",
    "tools_call",
    "elicitation-sep1034-client-defaults",
    "sse-retry",
    "auth/metadata-default",
    "auth/metadata-var1",
    "auth/metadata-var2",
    "auth/metadata-var3",
    "auth/basic-cimd",
    "auth/scope-from-www-authenticate",
    "auth/scope-from-scopes-supported",
    "auth/scope-omitted-when-undefined",
    "auth/scope-step-up",
    "auth/token-endpoint-auth-basic",
    "auth/token-endpoint-auth-post",
    "auth/token-endpoint-auth-none",
    "auth/pre-registration",
    "auth/client-credentials-basic",
)


@pytest.mark.nightly
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_conformance(scenario, tmp_path):
    client = shlex.join([sys.executable, "-m", "tests.mcp.conformance_client"])
    arguments = ("client", "--command", client, "--scenario", scenario, "--timeout", "90000")
    done = subprocess.run(  # noqa: PLW1510 - looked at below
        [*node("conformance", "dist/index.js", *arguments), "-o", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "MCP_CONFORMANCE_SCENARIO": scenario},
        cwd=HERE.parent.parent,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
