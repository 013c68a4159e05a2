"""Ways out of a cage that have to fail: the self-test runs them inside, and so do the tests.

Each attempt is a function that returns what it got hold of, or None, or raises. It runs in a fork
of its own, since the filter ends what it catches. Uncaged, most of them succeed: never run this on
a machine outside a namespace that was made to be thrown away.

The caller names victims in the environment: `HX_SECRET` (a file that only the host may read),
`HX_OWNED` (a file of the worker's user), `HX_PID`, `HX_PORT` (TCP and UDP on the host's loopback),
`HX_SOCK`, `HX_DGRAM` and `HX_ABSTRACT` (Unix sockets), `HX_IPC` (the host's IPC namespace), and
`HX_MARK`, a word in a victim's environment.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys

from harness_worker.sandbox.attempts import network, power, processes, reading, writing
from harness_worker.sandbox.attempts.common import ATTEMPTS, Attempt

__all__ = ["ATTEMPTS", "main", "network", "power", "processes", "reading", "run_one", "writing"]

_LIMIT_S = 3.0


def main(names: list[str]) -> None:
    """Run attempts and print one line of JSON for each: name, whether it escaped, what was seen."""
    for name in names or ATTEMPTS:
        escaped, detail = run_one(ATTEMPTS[name])
        sys.stdout.write(json.dumps([name, escaped, detail[:120]]) + "\n")
        sys.stdout.flush()


def run_one(attempt: Attempt) -> tuple[bool, str]:
    """Run one attempt in a fork; returns whether it got anywhere, and what happened."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGSYS, signal.SIG_DFL)
        os.close(read_end)
        try:
            got = attempt()
            answer = [bool(got) or (isinstance(got, int) and got is not False and got >= 0), got]
        except BaseException as error:  # noqa: BLE001 - a way that is barred
            answer = [False, f"{type(error).__name__}: {error}"]
        os.write(write_end, json.dumps(answer, default=repr).encode()[:4000])
        os._exit(0)
    os.close(write_end)
    ready, _, _ = select.select([read_end], [], [], _LIMIT_S)
    data = os.read(read_end, 4096) if ready else b""
    if not ready:
        os.kill(pid, signal.SIGKILL)
    os.close(read_end)
    _, status = os.waitpid(pid, 0)
    if data:
        escaped, got = json.loads(data)
        return bool(escaped), str(got)
    code = os.waitstatus_to_exitcode(status)
    return False, f"ended by {signal.Signals(-code).name}" if code < 0 else "no answer"
