"""Find the store of large bodies that the settings name.

`HARNESS_BLOBS` is `file:` and a folder, `s3:` and a bucket, `memory:` for what one process alone
needs, or the name of a plugin's store, a colon and what that wants to know. To add one: write its
file and add a line to `STORES`, or bring it in a plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from harness_common.blobs.local import LocalBlobs
from harness_common.blobs.memory import MemoryBlobs
from harness_common.blobs.s3 import open_s3
from harness_common.contracts.blob import Blobs
from harness_common.core.errors import Invalid
from harness_common.plugins import discover, part
from harness_common.settings import Settings

Factory = Callable[[str, Settings], Blobs]


def _file(where: str, settings: Settings) -> Blobs:
    del settings
    folder = Path(unquote(where.removeprefix("//"))).expanduser()
    if not folder.is_absolute():
        raise Invalid(
            f"HARNESS_BLOBS=file:{where[:200]} needs the whole path of a folder, such as "
            "file:///srv/harness/blobs",
            code="BLOBS_INVALID",
            field="blobs",
            value=where[:200],
        )
    return LocalBlobs(folder)


def _memory(where: str, settings: Settings) -> Blobs:
    del where, settings
    return MemoryBlobs()


STORES: Final[Mapping[str, Factory]] = {"file": _file, "memory": _memory, "s3": open_s3}


def blobs_of(settings: Settings) -> Blobs:
    """Return the store; without a setting a folder of the data folder. Raises `Invalid`."""
    if settings.blobs is None:
        return LocalBlobs(settings.data_dir.resolve() / "blobs")
    name, _, where = settings.blobs.partition(":")
    factory = STORES.get(name) or part(settings.plugins, "blobs", name)
    if factory is None:
        more = (n for one in discover(settings.plugins) if one.plugin for n in one.plugin.blobs)
        raise Invalid(
            f"there is no blob store {name[:64]!r}; known are {', '.join(sorted({*STORES, *more}))}"
            ". Set HARNESS_BLOBS to one of them, or install the plugin that has it",
            code="BLOBS_UNKNOWN",
            field="blobs",
            value=name[:64],
        )
    store: Blobs = factory(where, settings)
    return store
