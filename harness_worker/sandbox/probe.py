"""The self-test: which tier really holds on this machine, found by trying to get out.

Runs the whole list of attempts once in each tier against victims in the worker's own process. The
result is kept in the data folder and good for as long as the machine has not been started again and
the programs and the user are the same, so that only the first worker of a boot pays for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from harness_common.contracts.sandbox import CageJob, CageResult, Limits, SandboxTier, TierReport
from harness_common.core.errors import HarnessError
from harness_worker.sandbox import kernel, landlock
from harness_worker.sandbox.attempts import ATTEMPTS
from harness_worker.sandbox.bubblewrap import Bubblewrap
from harness_worker.sandbox.jailer_link import ROOT

log = structlog.get_logger()

_LIMITS: Final = Limits(cpu_s=20.0)
_TIME_S: Final = 60.0
SOURCE: Final = (
    f"import sys; sys.path.insert(0, {ROOT!r})\n"
    "from harness_worker.sandbox.attempts import main\nmain([])\n"
)
_VICTIM: Final = "import sys, time; HX_VICTIM = sys.stdin.read()"


class Runs(Protocol):
    """What the self-test needs of the sandbox."""

    @property
    def bwrap_problem(self) -> str | None:
        """Why there is no bubblewrap, or None."""
        ...

    async def run_in(self, tier: SandboxTier, job: CageJob) -> CageResult:
        """Run a job in a tier that may not hold."""
        ...


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of the attempts in one tier."""

    escaped: Mapping[str, str]
    blocked: Mapping[str, str]
    failure: str = ""
    """Why they could not be tried at all."""

    @property
    def why_not(self) -> str:
        """Return the reason why the tier does not hold, or an empty string."""
        if self.failure:
            return self.failure
        missing = len(ATTEMPTS) - len(self.escaped) - len(self.blocked)
        if missing:
            return f"{missing} of {len(ATTEMPTS)} escape attempts gave no answer"
        return "got out: " + ", ".join(sorted(self.escaped)) if self.escaped else ""


async def probe(
    sandbox: Runs, facts: Mapping[str, Any], cache_dir: Path | None, bwrap: Bubblewrap
) -> TierReport:
    """Return what holds, from the cache or by trying."""
    key = _key(bwrap)
    cached = _cached(cache_dir, key)
    if cached is not None:
        return cached
    why_not: dict[str, str] = {}
    async with victims() as env:
        for tier in (SandboxTier.A, SandboxTier.B):
            problem = _without_trying(tier, sandbox)
            reason = problem or (await try_tier(sandbox, tier, env)).why_not
            if reason:
                why_not[tier] = reason
    held = [t for t in (SandboxTier.A, SandboxTier.B) if t not in why_not]
    best = held[0] if held else SandboxTier.NONE
    report = TierReport(best, why_not, tuple(_notes(facts, bwrap)), len(ATTEMPTS))
    if cache_dir is not None and held:
        _keep(cache_dir, key, report)
    return report


async def try_tier(sandbox: Runs, tier: SandboxTier, env: Mapping[str, str]) -> Tried:
    """Run every attempt in a cage of a tier."""
    job = CageJob("python", SOURCE, env=env, limits=_LIMITS)
    try:
        async with asyncio.timeout(_TIME_S):
            result = await sandbox.run_in(tier, job)
    except (HarnessError, TimeoutError) as error:
        return Tried({}, {}, f"no cage: {str(error)[:300] or 'it took too long'}")
    return read_lines(result.stdout, result.stderr)


def read_lines(stdout: str, stderr: str = "") -> Tried:
    """Read what `attempts.main` printed."""
    escaped, blocked = dict[str, str](), dict[str, str]()
    for line in stdout.splitlines():
        with contextlib.suppress(ValueError):
            name, got_out, detail = json.loads(line)
            (escaped if got_out else blocked)[name] = detail
    failure = "" if escaped or blocked else f"nothing was tried: {stderr.strip()[-300:]}"
    return Tried(escaped, blocked, failure)


def _without_trying(tier: SandboxTier, sandbox: Runs) -> str:
    """Return why a tier cannot hold, where that is known beforehand."""
    if tier is SandboxTier.A:
        return sandbox.bwrap_problem or ""
    if not landlock.version():
        return "the kernel has no Landlock"
    if os.geteuid() != 0 and landlock.version() < landlock.SIGNALS_SCOPED:
        return "as an ordinary user it needs a Landlock that keeps signals in (Linux 6.12)"
    return ""


def _notes(facts: Mapping[str, Any], bwrap: Bubblewrap) -> list[str]:
    notes = list(facts["notes"])
    if bwrap.note:
        notes.append(bwrap.note)
    if not facts["own_users"]:
        notes.append("the worker is no root: cages share its user")
    if not facts["memory_groups"]:
        notes.append(
            "no cgroup can be written: memory is limited per process and watched, and calls that "
            "may use more than 256 MiB run one at a time (see HARNESS_SANDBOX__CGROUP)"
        )
    if not facts["disk_quota"]:
        notes.append("no private mounts: disk use of tier B is watched, not capped")
    return notes


# --- victims ---


@contextlib.asynccontextmanager
async def victims() -> AsyncIterator[dict[str, str]]:
    """Make what the attempts are after, on loopback and in a folder of its own."""
    mark = secrets.token_hex(8)
    loop = asyncio.get_running_loop()
    with _folder(mark) as folder, _unix(folder, mark) as unix, _process(mark) as process:
        server = await asyncio.start_server(lambda _, w: w.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        servers = [server]
        with contextlib.suppress(OSError):
            servers.append(await asyncio.start_server(lambda _, w: w.close(), "::1", port))
        udp, _ = await loop.create_datagram_endpoint(_Echo, ("127.0.0.1", port))
        try:
            yield {
                "HX_SECRET": f"{folder}/secret",
                "HX_OWNED": f"{folder}/owned",
                "HX_PID": str(process.pid),
                "HX_PORT": str(port),
                "HX_MARK": mark,
                "HX_IPC": os.readlink("/proc/self/ns/ipc"),
                **unix,
            }
        finally:
            udp.close()
            for one in servers:
                one.close()


@contextlib.contextmanager
def _folder(mark: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="harness-victims-") as folder:
        Path(folder).chmod(0o755)
        for name, mode in (("secret", 0o600), ("owned", 0o644)):
            file = Path(folder, name)
            file.write_text(f"{name} {mark}")
            file.chmod(mode)
        yield folder


@contextlib.contextmanager
def _unix(folder: str, mark: str) -> Iterator[dict[str, str]]:
    abstract = f"harness-victim-{mark}"
    kinds = {"HX_SOCK": socket.SOCK_STREAM, "HX_DGRAM": socket.SOCK_DGRAM}
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(f"\0{abstract}")
        listener.listen()
        names = {"HX_ABSTRACT": abstract}
        for name, kind in kinds.items():
            sock = stack.enter_context(socket.socket(socket.AF_UNIX, kind))
            names[name] = f"{folder}/{name}"
            sock.bind(names[name])
            Path(names[name]).chmod(0o666)
            if kind is socket.SOCK_STREAM:
                sock.listen()
        yield names


@contextlib.contextmanager
def _process(mark: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-I", "-S", "-c", _VICTIM]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, env={"HX_VICTIM": mark}) as process:
        try:
            yield process
        finally:
            process.kill()


class _Echo(asyncio.DatagramProtocol):
    """Answers every datagram."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to answer."""
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:  # noqa: ANN401 - as asyncio has it
        """Send it back."""
        assert isinstance(self._transport, asyncio.DatagramTransport)
        self._transport.sendto(data, addr)


# --- the cache ---


def _key(bwrap: Bubblewrap) -> str:
    """Name all that the result depends on."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    with open("/proc/self/status") as file:
        power = [line for line in file if line.startswith(("Cap", "NoNewPrivs", "Seccomp:"))]
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    parts = [
        boot, os.geteuid(), bwrap.path, bwrap.version, sys.executable, power, kernel.SUPPORTED,
        os.readlink("/proc/self/ns/user"), digest.hexdigest(),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _cached(folder: Path | None, key: str) -> TierReport | None:
    if folder is None:
        return None
    try:
        kept = json.loads((folder / "sandbox.json").read_bytes())
        if kept["key"] != key:
            return None
        best, why_not = SandboxTier(kept["best"]), dict(kept["why_not"])
        return TierReport(best, why_not, tuple(kept["notes"]), int(kept["attempts"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(folder: Path, key: str, report: TierReport) -> None:
    kept = {
        "key": key,
        "best": report.best,
        "why_not": dict(report.why_not),
        "notes": report.notes,
        "attempts": report.attempts,
    }
    fresh = folder / f"sandbox.json.{os.getpid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(kept))
        fresh.replace(folder / "sandbox.json")
