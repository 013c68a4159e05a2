"""A file that a process touches while it lives, for the probe of a container.

`HARNESS_ALIVE_DIR` says where; without it there is none. A loop that is stuck stops touching its
file. What is outside the process (Postgres, Redis) plays no part: being cut off is no reason to be
restarted.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "HARNESS_ALIVE_DIR"
_EVERY_S: Final = 5.0


class Alive:
    """The file of one process; without a name or a folder there is none."""

    def __init__(self, name: str | None, folder: str | None = None) -> None:
        folder = folder or os.environ.get(VARIABLE)
        self._path = Path(folder) / name if folder and name else None
        self._next = 0.0

    def beat(self) -> None:
        """Touch the file, if it is time; a disk that refuses is no fault of the process."""
        if self._path is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _EVERY_S
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
        except OSError:
            self._path = None
