"""`file_list`: what a folder below `settings.tool.file_root` holds."""

from __future__ import annotations

import fnmatch
import itertools
import os
import stat
from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

from harness_common.contracts.tool import Tool
from harness_common.core.message import Json
from harness_common.settings import Settings
from harness_worker.sdk import tool
from harness_worker.tools.paths import open_folder, require_root

_NAME = "file_list"
_DEFAULT_ENTRIES = 200
_MAX_ENTRIES = 1_000
_MAX_SCAN = 100_000


def build(settings: Settings) -> list[Tool]:
    """Build the tool over the folder of the settings."""
    root = settings.tool.file_root

    @tool(effect="read", permission_tags=["files"], reads_private=True)
    def file_list(
        path: Annotated[
            str, Field(description="Relative path of the folder; empty for the top one.")
        ] = "",
        pattern: Annotated[
            str, Field(max_length=200, description="Shell pattern for names, such as *.csv.")
        ] = "*",
        offset: Annotated[int, Field(ge=0, description="Entries to skip, to page on.")] = 0,
        max_entries: Annotated[
            int, Field(ge=1, le=_MAX_ENTRIES, description="The most entries to return.")
        ] = _DEFAULT_ENTRIES,
    ) -> Json:
        """List a folder inside the folder that the operator has opened to tools.

        Use it to find the paths that file_read needs. It does not descend: list a folder of the
        result in another call.

        Returns {path, entries, total, truncated}; an entry is {name, kind, size_bytes, modified_at}
        with kind file, folder, link or other, sorted by name. When truncated is true, call again
        with offset raised by the number of entries.
        Limits: 200 entries in one call unless max_entries says otherwise, 1,000 at most.
        """
        with open_folder(_NAME, require_root(_NAME, root), path) as fd, os.scandir(fd) as found:
            # fnmatchcase translates to a regular expression without nested repetition of one class.
            names = sorted(
                entry.name
                for entry in itertools.islice(found, _MAX_SCAN)
                if fnmatch.fnmatchcase(entry.name, pattern)
            )
            shown = names[offset : offset + max_entries]
            entries = [entry for name in shown if (entry := _entry(fd, name)) is not None]
        return {
            "path": path,
            "entries": entries,
            "total": len(names),
            "truncated": offset + len(shown) < len(names),
        }

    return [file_list]


def _entry(folder: int, name: str) -> dict[str, Json] | None:
    """Describe one entry without following links; None when it has just gone."""
    try:
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return {
        # A name that is not UTF-8 holds surrogates, which JSON cannot carry.
        "name": os.fsencode(name).decode("utf-8", errors="replace"),
        "kind": _kind(about.st_mode),
        "size_bytes": about.st_size,
        "modified_at": datetime.fromtimestamp(int(about.st_mtime), UTC).isoformat(),
    }


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"
