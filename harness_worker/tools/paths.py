"""Opens files below a folder and nowhere else; used by the file tools.

The path is resolved first, so that a link which stays inside works, and then walked folder by
folder with `O_NOFOLLOW` from a descriptor of the root: a link put in place between the two steps is
an error, not a way out.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from harness_common.core.errors import Denied, Invalid, NotFound, Permanent

_MAX_PATH_CHARS = 1_024
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""`O_NONBLOCK` so that opening a FIFO returns; it is then refused for not being a regular file."""


def require_root(tool: str, root: Path | None) -> Path:
    """Return the real path of the folder that file tools may see; raises `Denied` when there is
    none.
    """
    if root is None:
        raise Denied(
            f"Tool {tool!r} may not touch files: the operator has set no folder. "
            "Ask the operator to set HARNESS_TOOL__FILE_ROOT; do not call it again before that.",
            code="E403",
            tool=tool,
        )
    try:
        return root.resolve(strict=True)
    except OSError as problem:
        raise Permanent(
            f"Tool {tool!r} cannot reach its folder ({problem.strerror}). "
            "The operator must create the folder of HARNESS_TOOL__FILE_ROOT.",
            code="FILE_ROOT_MISSING",
            tool=tool,
        ) from problem


@contextlib.contextmanager
def open_file(tool: str, root: Path, path: str) -> Iterator[int]:
    """Open a regular file below `root` (a real path) for reading, and close it afterwards.

    Raises `Denied` (E403) for a path that leaves the root, `NotFound`, or `Permanent` for something
    that is not a file.
    """
    parts = _inside(tool, root, path)
    if not parts:
        raise _not_a_file(tool, path, "a folder; use file_list for it")
    with _errors(tool, root, path), _open_folder(root, parts[:-1]) as folder:
        fd = os.open(parts[-1], os.O_RDONLY | _FILE_FLAGS, dir_fd=folder)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise _not_a_file(tool, path, "a folder; use file_list for it")
        if not stat.S_ISREG(mode):
            raise _not_a_file(tool, path, "a device, socket or pipe; choose a regular file")
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def open_folder(tool: str, root: Path, path: str) -> Iterator[int]:
    """Open a folder below `root` (a real path) and close it afterwards; raises as `open_file`
    does.
    """
    parts = _inside(tool, root, path)
    with contextlib.ExitStack() as stack:
        with _errors(tool, root, path):
            fd = stack.enter_context(_open_folder(root, parts))
        yield fd


def _inside(tool: str, root: Path, path: str) -> tuple[str, ...]:
    """Resolve `path` below `root` and return its parts."""
    if len(path) > _MAX_PATH_CHARS or "\0" in path:
        raise Invalid(
            f"Tool {tool!r} refused the path: it is longer than {_MAX_PATH_CHARS} characters "
            "or has a NUL. Give a relative path such as data/sales.csv.",
            code="ARGUMENTS_INVALID",
            tool=tool,
        )
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        raise _outside(tool, path)
    with _errors(tool, root, path):
        real = Path(os.path.realpath(root / pure))
    if not real.is_relative_to(root):
        raise _outside(tool, path)
    return real.relative_to(root).parts


@contextlib.contextmanager
def _open_folder(root: Path, parts: tuple[str, ...]) -> Iterator[int]:
    fd = os.open(root, _FOLDER_FLAGS)
    try:
        for part in parts:
            below = os.open(part, _FOLDER_FLAGS, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _errors(tool: str, root: Path, path: str) -> Iterator[None]:
    """Turn operating system errors into words for the model."""
    try:
        yield
    except FileNotFoundError as problem:
        raise _missing(tool, root, path) from problem
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise _outside(tool, path) from problem
        if problem.errno == errno.ENOTDIR:
            raise _missing(tool, root, path) from problem
        raise Permanent(
            f"Tool {tool!r} cannot open {path!r}: {problem.strerror}. Choose another file.",
            code="FILE_UNREADABLE",
            tool=tool,
        ) from problem


def _outside(tool: str, path: str) -> Denied:
    return Denied(
        f"Tool {tool!r} refused {path[:200]!r}: it is outside the folder that tools may see. "
        "Give a path relative to that folder, without a leading / and without '..'.",
        code="E403",
        tool=tool,
    )


def _not_a_file(tool: str, path: str, what: str) -> Permanent:
    return Permanent(f"Tool {tool!r}: {path!r} is {what}.", code="NOT_A_FILE", tool=tool)


def _missing(tool: str, root: Path, path: str) -> NotFound:
    near: list[str] = []
    parent = PurePosixPath(path).parent
    with contextlib.suppress(OSError, Denied):
        real = Path(os.path.realpath(root / parent))
        if real.is_relative_to(root):
            names = sorted(os.listdir(real))[:1_000]
            near = difflib.get_close_matches(PurePosixPath(path).name, names, n=3)
    hint = f"Did you mean {' or '.join(str(parent / n) for n in near)}?" if near else ""
    return NotFound(
        f"Tool {tool!r}: there is no file or folder {path[:200]!r}. "
        f"{hint or 'Look with file_list.'}",
        code="FILE_NOT_FOUND",
        tool=tool,
        similar=near,
    )
