"""The one readable log of many processes: on the console, and one file each.

`12:00:01.234 worker | what it said`, in colours on a terminal.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, TextIO

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
_LOG_MAX_BYTES = 20 * 1024 * 1024


class ProcessLog:
    """Write lines of named processes to `console` and to `<folder>/<name>.log`. Thread-safe.

    A file past 20 MB is moved to `.log.1`. A console that went away is no error.
    """

    def __init__(self, folder: Path, console: TextIO = sys.stdout, width: int = 9) -> None:
        self._folder = folder
        self._console: TextIO | None = console
        self._coloured = use_colour(console)
        self._width = width
        self._files: dict[str, IO[str]] = {}
        self._colours: dict[str, int] = {}
        self._lock = threading.Lock()

    def write(self, name: str, line: str) -> None:
        """Add one line of the process `name`."""
        now = datetime.now().astimezone()
        with self._lock:
            self._write_file(name, f"{now.isoformat(timespec='milliseconds')} {line}\n")
            self._write_console(self._format(name, now.strftime("%H:%M:%S.%f")[:-3], line))

    def banner(self, text: str) -> None:
        """Show a text as it is, on the console only."""
        with self._lock:
            self._write_console(text)

    def close(self) -> None:
        """Close the files; later lines open them again."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def _format(self, name: str, clock: str, line: str) -> str:
        label = name.ljust(self._width)
        if not self._coloured:
            return f"{clock} {label} | {line}\n"
        colour = self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])
        return f"\033[2m{clock}\033[0m \033[{colour}m{label} |\033[0m {line}\n"

    def _write_console(self, text: str) -> None:
        if self._console is None:
            return
        try:
            self._console.write(text)
            self._console.flush()
        except (OSError, ValueError):  # `harness dev | head`, or a terminal that was closed
            self._console = None

    def _write_file(self, name: str, text: str) -> None:
        # A full disk must not stop the pumps: the children would hang on their pipes.
        with contextlib.suppress(OSError):
            file = self._files.get(name)
            if file is not None and file.tell() > _LOG_MAX_BYTES:
                file.close()
                path = self._folder / f"{name}.log"
                path.replace(path.with_suffix(".log.1"))
                file = None
            if file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                file = (self._folder / f"{name}.log").open("a", encoding="utf-8")
                self._files[name] = file
            file.write(text)
            file.flush()


def use_colour(console: TextIO, env: Mapping[str, str] = os.environ) -> bool:
    """Tell whether to colour: a terminal, and nobody said NO_COLOR (https://no-color.org)."""
    return console.isatty() and not env.get("NO_COLOR") and env.get("TERM") != "dumb"
