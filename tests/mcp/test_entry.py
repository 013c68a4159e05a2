"""The way in: a worker loads the protocol's library when a tenant has a server, and not before."""

from __future__ import annotations

import subprocess
import sys

from harness_common.settings import McpSettings
from harness_worker.mcp.entry import McpEntry, Needs
from harness_worker.tools.registry import check_spec
from tests.mcp.bench import asking, plain_client


async def test_tools_are_found_and_expanded(bench, tmp_path):
    entry = McpEntry(
        bench.db,
        Needs(
            McpSettings(commands=("*",)),
            tmp_path,
            plain_client,
            check_spec,
        ),
    )
    assert await entry.find(bench.tenant_id, ["s__look", "calculate"]) == []
    assert await entry.expand(bench.tenant_id, ["s__*", "calculate"]) == ("calculate",)
    assert entry._made is None
    await bench.declare("s", asking(bench.state))
    (look,) = await entry.find(bench.tenant_id, ["s__look", "calculate"])
    assert look.spec.outbound
    assert "s__look" in await entry.expand(bench.tenant_id, ["s__*"])
    await entry.aclose()


def test_a_worker_starts_without_the_library():
    script = "import sys, harness_worker.runtime as r; sys.exit('mcp' in sys.modules)"
    environment = {"HARNESS_REDIS_URL": "redis://127.0.0.1:1/0"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert done.returncode == 0
