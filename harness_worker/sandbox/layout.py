"""What a cage sees: the interpreter and the system's programs, nothing else.

A `Profile` is data that the worker makes and the jailer uses; nothing in it comes from a model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
ETC = (
    "/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf", "/etc/mime.types", "/etc/fonts", "/etc/magic",
)  # fmt: skip
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OPENBLAS_NUM_THREADS": "2",
    "MPLCONFIGDIR": "/tmp",  # noqa: S108 - the cage's own
}
WORK = "/work"
"""The work folder in tier A; in tier B it is the current folder."""
TMP = "/tmp"  # noqa: S108 - the cage's own
HOST = "/host"
"""Where tier A shows a folder of the machine that its own folders would hide."""


_START = """
import json, os, sys, _frozen_importlib as base, _frozen_importlib_external as files
class Named:
    known = json.loads(sys.argv[1])
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        place = cls.known.get(name)
        if place is None:
            return None
        if place.endswith(".py"):
            inner = [os.path.dirname(place)] if place.endswith("/__init__.py") else None
            return files.spec_from_file_location(name, place, submodule_search_locations=inner)
        spec = base.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [place]
        return spec
sys.meta_path.insert(0, Named)
from harness_worker.sandbox.inside import main
main(sys.argv[2])
"""


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of cage; cages of one profile are alike until a job comes."""

    python: str
    """The interpreter."""
    modules: tuple[tuple[str, str], ...]
    """Packages and modules by name, with the file or folder each is in: a cage may not look into
    the folders they stand in.
    """
    trees: tuple[str, ...]
    """Folders and files to be read, besides the system's."""
    preload: tuple[str, ...] = ()
    """Modules to import before a job comes."""
    disk_bytes: int = 64 * 1024 * 1024
    inet: bool = False
    """True with a relay to an egress proxy: the cage may make sockets in its own empty network."""
    proxy: str = ""
    """The Unix socket of the proxy, on the machine."""

    def to_json(self) -> dict[str, Any]:
        """Write it for the jailer."""
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Profile:
        """Read it in the jailer."""
        lists = {k: tuple(data[k]) for k in ("trees", "preload")}
        modules = tuple((name, path) for name, path in data["modules"])
        return Profile(**{**data, **lists, "modules": modules})

    def argv(self, setup: str, shown: Callable[[str], str] = str) -> list[str]:
        """Return the command that runs `inside` in the cage; `shown` says where a path is there."""
        modules = {name: shown(path) for name, path in self.modules}
        return [shown(self.python), "-I", "-c", _START, json.dumps(modules), setup]


def shown_in_cage(path: str) -> str:
    """Return where tier A shows a path of the machine: the same, unless its own folders hide it."""
    own = any(path == folder or path.startswith(f"{folder}/") for folder in (WORK, TMP))
    return HOST + path if own else path


def bwrap_argv(bwrap: str, profile: Profile, seccomp_fd: int, setup: str) -> list[str]:
    """Return the bubblewrap command of a tier A cage: fresh tmpfs where it may write, the rest is
    read-only; nothing is mounted below a path that a tool has filled.
    """
    argv = [
        bwrap, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
        "--unshare-cgroup-try", "--die-with-parent", "--new-session", "--hostname", "cage",
        "--clearenv",
    ]  # fmt: skip
    for name, value in {**ENVIRONMENT, "HOME": WORK, "TMPDIR": TMP}.items():
        argv += ["--setenv", name, value]
    for path in SYSTEM:
        if os.path.islink(path):
            argv += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            argv += ["--ro-bind", path, path]
    argv += ["--dir", "/etc"]
    if not any(path.startswith("/root/") for path in profile.trees):
        argv += ["--perms", "0000", "--dir", "/root"]
    for path in (*ETC, *profile.trees):
        argv += ["--ro-bind-try", path, shown_in_cage(path)]
    if profile.proxy:
        argv += ["--ro-bind", profile.proxy, PROXY_INSIDE]
    size = ["--size", str(profile.disk_bytes)]
    argv += ["--proc", "/proc", "--dev", "/dev", *size, "--tmpfs", "/dev/shm"]  # noqa: S108
    argv += ["--remount-ro", "/dev", *size, "--perms", "0700", "--tmpfs", WORK]
    argv += [*size, "--perms", "1777", "--tmpfs", TMP, "--chdir", WORK]
    argv += ["--remount-ro", "/", "--seccomp", str(seccomp_fd), "--"]
    return [*argv, *profile.argv(setup, shown_in_cage)]


PROXY_INSIDE = "/run/egress.sock"
