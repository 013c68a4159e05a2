"""Which folders and files of code a cage has to read."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig

from harness_common.core.errors import Permanent


def interpreter() -> list[str]:
    """Return the folders of the interpreter and of the packages that are installed for it."""
    paths = sysconfig.get_paths()
    found = [sys.base_prefix, sys.prefix, os.path.dirname(os.path.realpath(sys.executable))]
    found += [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    kept = [p for p in dict.fromkeys(map(os.path.realpath, found)) if not p.startswith("/usr/")]
    kept = [p for p in kept if p != "/usr" and os.path.isdir(p)]
    return [p for p in kept if not any(p != o and p.startswith(o + "/") for o in kept)]


def place(module: str) -> str:
    """Return the file of a module's top-level package, or its folder when it has no file."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None:
        raise Permanent(f"the tool module {module!r} is not to be found", code="TOOL_INVALID")
    if spec.origin is not None and spec.origin.endswith(".py"):
        return os.path.realpath(spec.origin)
    return os.path.realpath(next(iter(spec.submodule_search_locations or ())))


def tree(module: str) -> str:
    """Return the folder of a module's top-level package, or its file when it is no package."""
    return place(module).removesuffix("/__init__.py")
