"""An older version of this project, from its own history, to upgrade from."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

TOP = Path(__file__).parents[2]
_MIGRATIONS = "harness_common/store/migrations/versions"
_LOOK_BACK = 400


class NoHistory(Exception):
    """This is no clone with a history."""


def _git(*arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(TOP), *arguments], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoHistory(f"this needs the history of the repository: {error}") from error
    return done.stdout


def _migrations(revision: str) -> list[tuple[str, str]]:
    """List the migrations of a revision in order, each with the hash of what it says."""
    lines = _git("ls-tree", revision, f"{_MIGRATIONS}/").decode().splitlines()
    found = [(line.rpartition("/")[2], line.split()[2]) for line in lines]
    return sorted(one for one in found if one[0][0].isdigit())


def older_version() -> str:
    """Return the newest revision with fewer migrations than this one, ours being those and more;
    without one in sight, the oldest with the same ones.
    """
    revisions = _git("rev-list", f"--max-count={_LOOK_BACK}", "HEAD").decode().split()
    ours = _migrations("HEAD")
    same = revisions[0]
    for revision in revisions:
        theirs = _migrations(revision)
        if theirs and len(theirs) < len(ours) and ours[: len(theirs)] == theirs:
            return revision
        if theirs == ours:
            same = revision
    return same


def described(revision: str) -> str:
    """Say which revision that is."""
    last = _migrations(revision)[-1][0].partition("_")[0]
    said = _git("log", "-1", "--format=%h of %as", revision).decode().strip()
    return f"{said}, schema {last}"


def unpack(revision: str, folder: Path) -> Path:
    """Write the tree of a revision into a folder."""
    packages = ("harness_common", "harness_worker", "harness_api")
    with tarfile.open(fileobj=io.BytesIO(_git("archive", revision, *packages))) as archive:
        archive.extractall(folder, filter="data")
    return folder
