"""Files and folders of the embedded servers: private ones, and ones that `nobody` can reach."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from pathlib import Path

from harness_common.core.errors import Invalid, Permanent
from harness_common.embedded.process import Account


def write_private(path: Path, text: str) -> None:
    """Replace a file by one that only its owner can read; readers see the old or the new text."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def make_data_dir(path: Path) -> Path:
    """Make the data folder, passable for the account that Postgres runs as; return it resolved."""
    if not path.exists():
        path.mkdir(parents=True)
        path.chmod(0o711)
    return path.resolve()


def may(path: Path, account: Account, need: int) -> bool:
    """Tell whether `account` has the permission bits `need` on a path and can reach it."""

    def allowed(place: Path, bits: int) -> bool:
        info = place.stat()
        shift = 6 if info.st_uid == account.uid else 3 if info.st_gid == account.gid else 0
        return (info.st_mode >> shift) & bits == bits

    return all(allowed(folder, 1) for folder in path.parents) and allowed(path, need)


def shared_root() -> Path:
    """Return a folder of ours that every account can pass through. Only root needs one."""
    for root in (Path("/var/lib/harness"), Path(f"/var/tmp/harness-{os.geteuid()}")):  # noqa: S108
        with contextlib.suppress(OSError):
            root.mkdir(mode=0o711, exist_ok=True)
            info = root.lstat()
            # In /var/tmp somebody else may have made it first: never run binaries from there.
            if info.st_uid == os.geteuid() and not info.st_mode & 0o022 and root.is_dir():
                root.chmod(0o711)
                return root
    raise Permanent(
        "Found no folder that an unprivileged Postgres could reach. Use a data folder and a "
        "virtual environment outside /root, run as an ordinary user, or set HARNESS_DATABASE_URL.",
        code="NO_SHARED_FOLDER",
    )


def package_dir(package: str, setting: str) -> Path:
    """Find an installed package without importing it, or say what to do."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise Invalid(
            f"The package {package} is not installed. Install harness[embedded], or set {setting}.",
            code="NOT_INSTALLED",
        )
    return Path(spec.origin).resolve().parent


def tail(path: Path, lines: int = 15) -> str:
    """Return the last lines of a log."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 16_384))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    return ""
