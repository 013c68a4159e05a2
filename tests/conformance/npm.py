"""Model servers of npm, as `node/package-lock.json` pins them with hashes."""

from __future__ import annotations

from pathlib import Path

from tests.mcp.node_servers import NODE, installed

FOLDER = Path(__file__).parent / "node"


def aimock(*arguments: str) -> list[str]:
    """Return the command that starts `@copilotkit/aimock`, installed when it is not there."""
    script = installed(FOLDER) / "@copilotkit" / "aimock" / "dist" / "cli.js"
    return [str(NODE), str(script), *arguments]
