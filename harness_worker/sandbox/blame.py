"""Says why a program ended badly: which rule it met, or which limit it reached.

Only words for the model and the ledger: nothing is let through or stopped by what is judged here.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import Any

BLOCKED_EXIT = 127
_FORBIDDEN = {errno.EPERM, errno.EACCES, errno.EROFS}
_LIMITS = {
    errno.ENOSPC: "disk_bytes",
    errno.EDQUOT: "disk_bytes",
    errno.EFBIG: "disk_bytes",
    errno.ENOMEM: "memory_bytes",
    errno.EAGAIN: "processes",
}
_SIGNALS = {signal.SIGXCPU: "cpu_s", signal.SIGXFSZ: "disk_bytes"}
_MAX_TAIL_BYTES = 16_384

_SAID = (
    ("No space left on device", "disk_bytes"),
    ("File too large", "disk_bytes"),
    ("File size limit exceeded", "disk_bytes"),
    ("Cannot allocate memory", "memory_bytes"),
    ("Resource temporarily unavailable", "processes"),
    ("CPU time limit exceeded", "cpu_s"),
)
_SAID_FORBIDDEN = ("Permission denied", "Operation not permitted", "Read-only file system")


def describe(error: BaseException) -> dict[str, Any]:
    """Write what the runner needs to know of an exception that nobody caught."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError):
        number = errno.ENOMEM
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        number = errno.EAGAIN
    path = getattr(error, "filename", None)
    if not isinstance(path, str):
        path = None
    return {"error": type(error).__name__, "errno": number, "path": path}


def judge(kind: str, code: int, told: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the exit code, and `blocked` or `limit` when the cage is the cause."""
    shown = 128 - code if code < 0 else code
    if code < 0 and (name := _SIGNALS.get(signal.Signals(-code))):
        return {"exit_code": shown, "limit": name}
    syscall = next((t["syscall"] for t in told if isinstance(t.get("syscall"), str)), None)
    if syscall is not None and code == BLOCKED_EXIT:
        return {"exit_code": BLOCKED_EXIT, "blocked": f"seccomp: {syscall[:60]} is not allowed"}
    if code == -signal.SIGSYS or (kind == "shell" and code == 128 + signal.SIGSYS):
        return {"exit_code": BLOCKED_EXIT, "blocked": "seccomp: a system call is not allowed"}
    if code == 128 + signal.SIGXCPU and kind == "shell":
        return {"exit_code": shown, "limit": "cpu_s"}
    for item in told:
        number = item.get("errno")
        if number in _LIMITS:
            return {"exit_code": shown, "limit": _LIMITS[number]}
        if number in _FORBIDDEN:
            where = f" {item['path']}" if isinstance(item.get("path"), str) else ""
            rule = f"files and system: {os.strerror(number)}{where}"
            return {"exit_code": BLOCKED_EXIT, "blocked": rule[:300]}
    return {"exit_code": shown}


def judge_text(stderr: str) -> dict[str, str]:
    """Read what programs of a failed shell script said."""
    for line in reversed(stderr[-_MAX_TAIL_BYTES:].splitlines()):
        for text, limit in _SAID:
            if text in line:
                return {"limit": limit}
        for text in _SAID_FORBIDDEN:
            if text in line:
                return {"blocked": f"files and system: {line.strip()[:200]}"}
    return {}
