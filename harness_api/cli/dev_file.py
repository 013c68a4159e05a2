"""What a running `harness dev` says of itself in `<data_dir>/dev.json`: for the client, the other
commands and whoever wants its ports. Apart from `dev`, since it must load quickly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import psutil

DEFAULT_DATA_DIR: Final = Path(".harness")


def read_dev_file(data_dir: Path) -> dict[str, Any] | None:
    """Return what a running `harness dev` over this folder says; None when none is running."""
    try:
        found: dict[str, Any] = json.loads((data_dir / "dev.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found if psutil.pid_exists(found["pid"]) else None  # kill -9 leaves the file behind
