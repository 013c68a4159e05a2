"""The jailer: a small single-threaded process beside each worker process that makes cages.

Because it has one thread, no connections, no secrets and a clean environment, it can fork safely,
and what it forks inherits nothing. It hears orders on a socket (one JSON object a datagram; the
ends of a new cage's pipes go back with the answer), and never sees what goes into a cage. When its
worker ends, the socket closes, and it ends every cage and itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any

from harness_worker.sandbox import cgroup, kernel, landlock, procs, seccomp
from harness_worker.sandbox.ground import Ground
from harness_worker.sandbox.layout import DEVICES, ENVIRONMENT, ETC, SYSTEM, Profile, bwrap_argv

_LOOK_S = 0.1
"""How often running cages are held against their limits."""
_START_CPU_S = 1.0
"""The most processor time that the start of a cage is taken to need."""
_CTRL_FD = 3
_SECCOMP_FD = 4
_OPEN_FILES = 256
_MAX_ORDER_BYTES = 128 * 1024


@dataclass(slots=True)
class Cage:
    """One cage, from its fork until nothing of it is left."""

    id: int
    slot: int
    tier: str
    pid: int
    work: str | None
    group: cgroup.Group | None
    kills_before: int
    init: int | None = None
    """The first process of its pid namespace, once known; its end is the end of all in there."""
    status: int | None = None
    limits: dict[str, float] | None = None
    cpu_before_s: float | None = None
    """What its start took, by the first look: not the tool's."""
    hit: tuple[str, float] | None = None
    ending: bool = False


class Jailer:
    """Makes cages, watches them, ends them."""

    def __init__(self, orders: socket.socket, ground: Ground, bwrap: str, slots: int) -> None:
        self._orders, self._ground, self._bwrap = orders, ground, bwrap
        self._cages: dict[int, Cage] = {}
        self._free = list(range(slots))
        self._looked_at = 0.0

    def run(self) -> None:
        """Serve until the worker is gone."""
        wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            busy = any(c.limits or c.ending for c in self._cages.values())
            orders = self._orders.fileno()
            ready, _, _ = select.select([orders, wake_r], [], [], _LOOK_S if busy else None)
            if wake_r in ready:
                os.read(wake_r, 4096)
            if orders in ready and not self._hear():
                return
            self._reap()
            if busy and time.monotonic() - self._looked_at >= _LOOK_S:
                self._look()

    def end_all(self) -> None:
        """End every cage and wait until it is gone."""
        for cage in self._cages.values():
            self._kill(cage)
        deadline = time.monotonic() + 5.0
        while self._cages and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.002)
        self._ground.clear()

    def _hear(self) -> bool:
        """Carry out one order; returns False when there will be none any more."""
        try:
            data = self._orders.recv(_MAX_ORDER_BYTES)
        except ConnectionError:
            return False
        if not data:
            return False
        order = json.loads(data)
        what, number = order["op"], order["id"]
        if what == "open":
            self._open(number, order["tier"], Profile.from_json(order["profile"]))
        elif what == "begin" and number in self._cages:
            self._begin(self._cages[number], order["limits"])
        elif what == "end" and number in self._cages:
            self._kill(self._cages[number])
        return True

    def _say(self, fds: tuple[int, ...] = (), **what: Any) -> None:
        with contextlib.suppress(ConnectionError):  # the worker is gone: `_hear` will see it
            socket.send_fds(self._orders, [json.dumps(what).encode()], fds)

    # --- making a cage ---

    def _open(self, number: int, tier: str, profile: Profile) -> None:
        if not self._free:
            self._say(failed=number, why="every slot is taken")
            return
        slot = self._free.pop()
        ctrl, inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        out_r, out_w = os.pipe2(os.O_CLOEXEC)
        err_r, err_w = os.pipe2(os.O_CLOEXEC)
        work = None
        try:
            group = self._ground.group(slot)
            work = self._ground.work_folder(slot, profile.disk_bytes) if tier == "B" else None
            kills = group.kills() if group else 0
            pid = os.fork()
            if pid == 0:
                self._become(tier, profile, slot, (inner.fileno(), out_w, err_w), work)
            self._cages[number] = Cage(number, slot, tier, pid, work, group, kills)
            self._say((ctrl.fileno(), out_r, err_r), opened=number, pid=pid, work=work)
        except OSError as error:
            self._free.append(slot)
            self._say(failed=number, why=str(error))
        finally:
            ctrl.close()
            inner.close()
            for fd in (out_r, out_w, err_r, err_w):
                os.close(fd)

    def _become(
        self, tier: str, profile: Profile, slot: int, fds: tuple[int, int, int], work: str | None
    ) -> None:
        """Turn this fork into a cage; never returns."""
        try:
            jailer = os.getppid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            group = self._ground.group(slot)
            if group is not None:
                group.enter()
            os.setsid()
            self._ground.drop(slot)
            kernel.die_with_parent(jailer)
            _move_fds(fds)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
            os.umask(0o077)
            setup = json.dumps(
                {
                    "tier": tier,
                    "preload": profile.preload,
                    "proxy": bool(profile.proxy),
                    "grouped": group is not None,
                }
            )
            if tier == "A":
                self._exec_a(profile, setup)
            else:
                assert work is not None
                _exec_b(profile, setup, work)
        except BaseException:  # noqa: BLE001 - a fork must not go on as a second jailer
            with contextlib.suppress(OSError):
                os.write(2, traceback.format_exc().encode())
        os._exit(126)

    def _exec_a(self, profile: Profile, setup: str) -> None:
        program = seccomp.tier_a(inet=profile.inet)
        memory = os.memfd_create("filter", 0)
        os.write(memory, program)
        os.lseek(memory, 0, os.SEEK_SET)
        if memory != _SECCOMP_FD:
            os.dup2(memory, _SECCOMP_FD)
            os.close(memory)
        argv = bwrap_argv(self._bwrap, profile, _SECCOMP_FD, setup)
        os.execve(self._bwrap, argv, {"PATH": ENVIRONMENT["PATH"]})

    # --- watching and ending ---

    def _begin(self, cage: Cage, limits: dict[str, float]) -> None:
        cage.limits = limits
        if cage.tier == "A":
            cage.init = procs.first_child(cage.pid)
        if cage.group is not None:
            with contextlib.suppress(OSError):
                cage.group.limit(int(limits["memory_bytes"]))

    def _processes(self, cage: Cage, all_: dict[int, procs.Proc]) -> list[procs.Proc]:
        return procs.below(all_, (cage.pid,), cage.pid)

    def _look(self) -> None:
        """Hold what each cage uses against its limits."""
        self._looked_at = time.monotonic()
        all_ = procs.scan()
        for cage in list(self._cages.values()):
            if cage.ending:
                self._kill(cage)
            elif cage.limits and (name := self._over(cage, cage.limits, all_)):
                cage.hit = (name, cage.limits[name])
                self._kill(cage)

    def _over(
        self, cage: Cage, limits: dict[str, float], all_: dict[int, procs.Proc]
    ) -> str | None:
        used = procs.usage(self._processes(cage, all_))
        if cage.cpu_before_s is None:
            cage.cpu_before_s = min(used.cpu_s, _START_CPU_S)
        if used.cpu_s - cage.cpu_before_s > limits["cpu_s"]:
            return "cpu_s"
        # The runner itself, and bubblewrap's two, are not the tool's.
        if used.processes - (3 if cage.tier == "A" else 1) > limits["processes"]:
            return "processes"
        if cage.group is None and used.memory_bytes > 2 * limits["memory_bytes"]:
            return "memory_bytes"  # shared pages are counted for each: twice is certain
        watched = cage.work is not None and not self._ground.has_quota
        if watched and procs.disk_bytes(str(cage.work)) > limits["disk_bytes"]:
            return "disk_bytes"
        return None

    def _kill(self, cage: Cage) -> None:
        """End all processes of a cage; `_reap` sees them gone. Safe to repeat.

        A number is signalled only while it is certainly this cage's: its first process is our child
        that has not been reaped, and so is the first one of its pid namespace or our child's.
        """
        if cage.status is not None:
            return
        again, cage.ending = cage.ending, True
        if cage.tier == "A":
            cage.init = cage.init or procs.first_child(cage.pid)
            if cage.init is not None and procs.parent_of(cage.init) == cage.pid:
                _send_kill(cage.init)
            _send_kill(cage.pid)
        else:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(cage.pid, signal.SIGKILL)
            _send_kill(cage.pid)  # it may not have made its group yet, nor anything else then
            if again:
                self._ground.sweep(cage.slot)

    def _reap(self) -> None:
        """Collect the dead, orphans among them, and close the cages that are gone."""
        by_pid = {cage.pid: cage for cage in self._cages.values()}
        while True:
            try:
                # Looked at before it is collected: until then its number is its own.
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if found is None:
                break
            cage = by_pid.get(found.si_pid)
            if cage is not None:
                self._first_ended(cage)
            _, status = os.waitpid(found.si_pid, 0)
            if cage is not None:
                cage.status = status
        for cage in list(self._cages.values()):
            if cage.status is not None and self._is_gone(cage):
                self._close(cage)

    def _first_ended(self, cage: Cage) -> None:
        """End what a cage's first process has left behind, while its number is still its own."""
        cage.ending = True
        if cage.tier == "B":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(cage.pid, signal.SIGKILL)
            self._ground.sweep(cage.slot)

    def _is_gone(self, cage: Cage) -> bool:
        """Tell whether nothing is left of a cage whose first process has been collected.

        Its orphans are our children: none of the group, or no first process of the pid namespace,
        is none at all.
        """
        if cage.tier == "A":
            if cage.init is None or procs.parent_of(cage.init) != os.getpid():
                return True
            _send_kill(cage.init)
            return False
        try:
            while os.waitpid(-cage.pid, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        return False

    def _close(self, cage: Cage) -> None:
        del self._cages[cage.id]
        hit = cage.hit
        if hit is None and cage.limits and cage.group and cage.group.kills() > cage.kills_before:
            hit = ("memory_bytes", cage.limits["memory_bytes"])
        if cage.group is not None:
            with contextlib.suppress(OSError):
                cage.group.limit(1 << 40)
        if cage.work is not None:
            self._ground.remove_work(cage.slot, cage.work)
        self._free.append(cage.slot)
        assert cage.status is not None
        self._say(closed=cage.id, code=os.waitstatus_to_exitcode(cage.status), hit=hit)


def _send_kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _move_fds(fds: tuple[int, int, int]) -> None:
    """Leave this process its three streams and the control socket, nothing else."""
    safe = [os.dup(fd) for fd in fds]
    while min(safe) <= _SECCOMP_FD:
        safe = [os.dup(fd) if fd <= _SECCOMP_FD else fd for fd in safe]
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(safe[1], 1)
    os.dup2(safe[2], 2)
    os.dup2(safe[0], _CTRL_FD)
    os.closerange(_CTRL_FD + 1, 1 << 16)


def _exec_b(profile: Profile, setup: str, work: str) -> None:
    os.chdir(work)
    kernel.no_new_privileges()
    read = (*SYSTEM, *ETC, *profile.trees)
    if landlock.restrict(read, (work, *DEVICES)) < 3:
        raise OSError("the kernel's Landlock is too old: truncate is not governed")
    kernel.load_seccomp(seccomp.tier_b())
    environment = {**ENVIRONMENT, "HOME": work, "TMPDIR": work, "MPLCONFIGDIR": work}
    os.execve(profile.python, profile.argv(setup), environment)


def main() -> None:
    """Run from the command line: the number of the socket, and the worker's settings as JSON."""
    orders = socket.socket(fileno=int(sys.argv[1]))
    config = json.loads(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which ends us
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.set_inheritable(orders.fileno(), False)
    kernel.be_subreaper()
    try:
        ground = Ground.prepare(config)
    except Exception as error:
        orders.send(json.dumps({"failed_start": f"{type(error).__name__}: {error}"}).encode())
        raise
    jailer = Jailer(orders, ground, config["bwrap"], config["slots"])
    ready = {"ready": os.getpid(), "facts": ground.facts()}
    orders.send(json.dumps(ready).encode())
    try:
        jailer.run()
    finally:
        jailer.end_all()
        shutil.rmtree(ground.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
