"""What runs a tool in a cage: the limits, what goes in, what comes out, which tier really holds.

The worker's implementation is `harness_worker.sandbox`; the tool runner speaks to this alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

from harness_common.core.message import Json

_MIB = 1024 * 1024


class SandboxTier(StrEnum):
    """The least isolation a tool may run in."""

    NONE = "none"
    """Trusted code of the operator, in the worker's own process."""
    B = "B"
    """A user of its own where the worker is root, Landlock, seccomp without sockets."""
    A = "A"
    """As B, and namespaces: nothing of the machine is there to be seen."""

    def reaches(self, minimum: SandboxTier) -> bool:
        """Tell whether this tier is at least as strong as `minimum`."""
        order = (SandboxTier.NONE, SandboxTier.B, SandboxTier.A)
        return order.index(self) >= order.index(minimum)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may use, all its processes together; its wall clock is the tool's timeout."""

    cpu_s: float = 3.0
    memory_bytes: int = 512 * _MIB
    processes: int = 64
    output_bytes: int = _MIB
    """Of stdout and of stderr, each."""
    disk_bytes: int = 64 * _MIB
    artifact_bytes: int = 16 * _MIB
    """Of all files taken out of the work folder together; the rest is named and left."""


@dataclass(frozen=True, slots=True)
class LimitHit:
    """A limit that ended a call: the field of `Limits`, and its value."""

    name: str
    value: float

    def __str__(self) -> str:
        return f"{self.name} = {self.value:g}"


@dataclass(frozen=True, slots=True)
class CageFile:
    """A file of the work folder; `path` is relative to it."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class CageJob:
    """One thing to run in a cage of its own."""

    kind: Literal["python", "shell", "tool"]
    source: str = ""
    """Python code, or a shell script."""
    files: tuple[CageFile, ...] = ()
    stdin: bytes = b""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the cage's own environment; the only way in for a secret."""
    hosts: tuple[str, ...] = ()
    """Where the egress proxy lets it connect, as `host` or `host:port`; needs tier A."""
    module: str = ""
    """For `tool`: where the `Tool` named `call["tool"]` is found."""
    call: Mapping[str, Json] = field(default_factory=dict)
    """For `tool`: its name, arguments and the plain fields of its context."""
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True)
class CageResult:
    """How a job ended; when this is returned, nothing of the cage is left."""

    exit_code: int
    """Of the program; 128 + n when signal n ended it, 127 when it was blocked."""
    stdout: str
    stderr: str
    tier: SandboxTier
    files: tuple[CageFile, ...] = ()
    left_out: tuple[str, ...] = ()
    """Files of the work folder that did not fit, or were no regular files."""
    truncated: bool = False
    hit: LimitHit | None = None
    blocked: str | None = None
    """The rule that a forbidden action met."""
    value: Mapping[str, Json] | None = None
    """For `tool`: what it returned or raised, as `harness_worker.sandbox.values` writes it."""
    value_body: bytes = b""


@dataclass(frozen=True, slots=True)
class TierReport:
    """What this machine's sandbox really holds, as its self-test found it."""

    best: SandboxTier
    why_not: Mapping[str, str]
    """For each tier that does not hold: the reason."""
    notes: tuple[str, ...] = ()
    """What an operator should know, such as how memory is limited."""
    attempts: int = 0
    """Escapes tried in each tier."""


Ask = Callable[[Mapping[str, Json], bytes], Awaitable[tuple[Mapping[str, Json], bytes]]]
"""Answers what a caged tool asks of its context (progress, artifact, read_artifact)."""


class Sandbox(Protocol):
    """Runs jobs in cages."""

    async def report(self) -> TierReport:
        """Return what holds; the first call runs the self-test."""
        ...

    async def run(
        self,
        job: CageJob,
        minimum: SandboxTier,
        ask: Ask | None = None,
        *,
        on_start: Callable[[], None] = lambda: None,
    ) -> CageResult:
        """Run a job in the strongest tier that holds. `on_start` is called as the job is handed to
        its cage: before, while it waits for its turn, nothing of it was run.

        Raises `Denied` (`SANDBOX_UNAVAILABLE`) when that is less than `minimum`, `Transient`
        (`SANDBOX_LOST`) when the cage was lost to something other than the job.
        """
        ...
