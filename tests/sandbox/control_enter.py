"""Becomes an ordinary user that can reach the interpreter, then the program in the arguments."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from harness_worker.sandbox import ground, kernel

_NOBODY = 64_999

if os.geteuid() == 0:
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    code = [str(Path(__file__).parents[2] / name) for name in ("harness_worker", "tests")]
    ground.expose([sys.base_prefix, *code, *json.loads(sys.argv[1])])
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
os.execv(sys.argv[2], sys.argv[2:])
