"""`run_program`: the programs that the operator has declared in the JSON file
`settings.tool.programs`.

The file is read when the worker starts and looks like this; only `argv` is required:

    {"wordcount": {"argv": ["/usr/bin/wc", "-w"], "description": "Counts words.", "timeout_s": 10,
                   "max_output_bytes": 65536, "env": {"LC_ALL": "C.UTF-8"}, "effect": "read"}}

Each call is a process group of its own with a clean environment in an empty folder. When the call
ends, is cancelled or times out, nothing of the group is left. When the worker is killed, so is the
program (on Linux; what it has started itself goes on).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from harness_common.contracts.tool import EffectClass, Tool
from harness_common.core.errors import (
    Denied,
    Invalid,
    NotFound,
    Permanent,
    Transient,
    UnknownOutcome,
)
from harness_common.core.message import Json
from harness_common.embedded.process import dies_with_us
from harness_common.settings import Settings
from harness_worker.sdk import tool

_NAME = "run_program"
_TERM_GRACE_S = 1.0
_DRAIN_S = 0.5
"""How long output is waited for once the program itself has ended."""
_MAX_ARGS = 64
_MAX_ARG_CHARS = 8_192
_MAX_STDIN_CHARS = 1024 * 1024
_CHUNK = 64 * 1024
_BASE_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
_STRENGTH = (EffectClass.READ, EffectClass.IDEMPOTENT, EffectClass.WRITE)


class Program(BaseModel):
    """One declared program; the model's arguments are put after `argv`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    description: str = ""
    timeout_s: Annotated[float, Field(gt=0, le=3_600)] = 30.0
    max_output_bytes: Annotated[int, Field(ge=1, le=16 * 1024 * 1024)] = 64 * 1024
    """For stdout and stderr each."""
    env: dict[str, str] = {}
    effect: EffectClass = EffectClass.WRITE


_PROGRAMS = TypeAdapter(dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")], Program])


def build(settings: Settings) -> list[Tool]:
    """Build the tool over the declared programs; its effect is the strongest of theirs, `write`
    when there are none.

    Raises `Invalid` (`PROGRAMS_INVALID`) for a file that is missing or wrong: the worker should not
    start with it.
    """
    programs = load_programs(settings.tool.programs)
    effect = max(
        (p.effect for p in programs.values()), key=_STRENGTH.index, default=EffectClass.WRITE
    )
    # Behind the longest limit of ours, so that a program is ended by its own.
    longest_s = max((p.timeout_s for p in programs.values()), default=30.0)

    @tool(
        effect=effect,
        description=_description(programs),
        timeout_s=longest_s + _TERM_GRACE_S + _DRAIN_S + 1.0,
        permission_tags=["programs", "write"] if effect is EffectClass.WRITE else ["programs"],
        risk="medium",
        reads_private=True,
    )
    async def run_program(
        program: Annotated[str, Field(description="The name of a declared program.")],
        args: Annotated[
            list[Annotated[str, Field(max_length=_MAX_ARG_CHARS)]],
            Field(max_length=_MAX_ARGS, description="Arguments, one string each; no shell."),
        ] = [],  # noqa: B006 - never changed; a default of the schema
        stdin: Annotated[
            str, Field(max_length=_MAX_STDIN_CHARS, description="Text for standard input.")
        ] = "",
    ) -> Json:
        declared = _declared(programs, program)
        argv = (*declared.argv, *args)
        if any("\0" in arg for arg in argv):
            raise _refused("an argument has a NUL character; leave it out")
        try:
            data = stdin.encode()
            argv_bytes = [arg.encode() for arg in argv]
        except UnicodeEncodeError:
            raise _refused("an argument or stdin has a lone surrogate; leave it out") from None
        with tempfile.TemporaryDirectory(prefix="harness-program-") as folder:
            env = {**_BASE_ENV, "HOME": folder, "TMPDIR": folder, **declared.env}
            ended = await _run(program, declared, argv_bytes, data, env, folder)
        return {
            "program": program,
            "exit_code": ended.exit_code,
            "stdout": ended.stdout.text(),
            "stderr": ended.stderr.text(),
            "truncated": ended.stdout.cut or ended.stderr.cut,
        }

    return [run_program]


def load_programs(path: Path | None) -> dict[str, Program]:
    """Read the declarations; raises `Invalid` (`PROGRAMS_INVALID`) that names the file and the
    field.
    """
    if path is None:
        return {}
    try:
        return _PROGRAMS.validate_json(path.read_bytes())
    except OSError as problem:
        cause = str(problem.strerror)
    except ValidationError as problem:
        cause = "; ".join(
            f"{'.'.join(map(str, error['loc'])) or 'file'}: {error['msg']}"
            for error in problem.errors(include_url=False)[:5]
        )
    raise Invalid(
        f"HARNESS_TOOL__PROGRAMS ({path}) cannot be used: {cause}. "
        "Correct the file and start again.",
        code="PROGRAMS_INVALID",
        path=str(path),
    )


def _description(programs: Mapping[str, Program]) -> str:
    listed = "\n".join(f"- {name}: {p.description or p.argv[0]}" for name, p in programs.items())
    return (
        "Run one of the programs that the operator has declared, and wait until it ends.\n\n"
        "Use it only for what the list says. There is no shell, so no pipes or wildcards.\n\n"
        f"Programs:\n{listed or '- none are declared; every call is refused'}\n\n"
        "Returns {program, exit_code, stdout, stderr, truncated}; read exit_code, 0 means "
        "success and a negative one the signal that ended it. "
        "When truncated is true the output was cut.\n"
        "Limits: 64 arguments, and the time and output that the operator allows each program."
    )


def _declared(programs: Mapping[str, Program], name: str) -> Program:
    if not programs:
        raise Denied(
            f"Tool {_NAME!r} has no programs. Ask the operator to set HARNESS_TOOL__PROGRAMS; "
            "do not call it again before that.",
            code="E403",
            tool=_NAME,
        )
    if name not in programs:
        raise NotFound(
            f"Tool {_NAME!r}: there is no program {name[:64]!r}. Declared: {', '.join(programs)}.",
            code="PROGRAM_NOT_FOUND",
            tool=_NAME,
        )
    return programs[name]


def _refused(cause: str) -> Invalid:
    return Invalid(
        f"Tool {_NAME!r} started nothing: {cause}.", code="ARGUMENTS_INVALID", tool=_NAME
    )


class _Output:
    """The beginning of a stream; what comes after the limit is read and dropped, so that the
    program can go on.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self.cut = False
        self.drained: asyncio.Future[None]
        """Done when the stream has ended."""

    async def drain(self, stream: asyncio.StreamReader) -> None:
        """Read to the end."""
        while chunk := await stream.read(_CHUNK):
            room = self._limit - len(self._data)
            self._data += chunk[:room]
            self.cut = self.cut or len(chunk) > room

    def text(self) -> str:
        """Return what was kept, with bytes that are not UTF-8 replaced."""
        return self._data.decode("utf-8", errors="replace")


@dataclass(frozen=True, slots=True)
class _Ended:
    exit_code: int
    stdout: _Output
    stderr: _Output


async def _run(
    name: str, program: Program, argv: list[bytes], stdin: bytes, env: Mapping[str, str], cwd: str
) -> _Ended:
    stdout, stderr = _Output(program.max_output_bytes), _Output(program.max_output_bytes)
    async with _collected(stdout) as out, _collected(stderr) as err:
        with out, err, tempfile.TemporaryFile() as source:
            source.write(stdin)
            source.seek(0)
            process = await _start(name, argv, (source, out, err), env, cwd)
        try:
            async with asyncio.timeout(program.timeout_s):
                exit_code = await process.wait()
        except TimeoutError:
            await _end(process)
            raise _timed_out(name, program) from None
        except asyncio.CancelledError:
            # Shielded: a second cancellation must not leave the group running.
            await asyncio.shield(asyncio.ensure_future(_end(process)))
            raise
        finally:
            _signal(process.pid, signal.SIGKILL)
        # What is still in the pipes; a child that has left the group may hold them open.
        await asyncio.wait([stdout.drained, stderr.drained], timeout=_DRAIN_S)
    return _Ended(exit_code, stdout, stderr)


async def _start(
    name: str, argv: list[bytes], streams: tuple[IO[bytes], ...], env: Mapping[str, str], cwd: str
) -> asyncio.subprocess.Process:
    stdin, stdout, stderr = streams
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=env,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=dies_with_us(signal.SIGKILL),
        )
    except OSError as problem:
        raise Permanent(
            f"Tool {_NAME!r} cannot start {name!r}: {problem.strerror}. "
            "The operator must check its argv; nothing was run.",
            code="EXECUTION_ERROR",
            tool=_NAME,
        ) from problem


@contextlib.asynccontextmanager
async def _collected(output: _Output) -> AsyncIterator[IO[bytes]]:
    """Read a pipe into `output` until the end of the block; yields its writing end.

    The pipe is not one of asyncio's: `Process.wait` waits until those are closed, so that a child
    left in the background would hold the call.
    """
    read_fd, write_fd = os.pipe()
    reader = asyncio.StreamReader(limit=_CHUNK)
    with os.fdopen(write_fd, "wb", buffering=0) as writing:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb", buffering=0)
        )
        output.drained = asyncio.ensure_future(output.drain(reader))
        try:
            yield writing
        finally:
            output.drained.cancel()
            await asyncio.gather(output.drained, return_exceptions=True)
            transport.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the whole process group: politely, then for good; returns when the program has been
    reaped.
    """
    _signal(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(_TERM_GRACE_S):
            await process.wait()
    except TimeoutError:
        pass
    _signal(process.pid, signal.SIGKILL)
    await process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    """Signal the group of a program; its number is the program's pid, which stays taken while a
    member lives.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _timed_out(name: str, program: Program) -> UnknownOutcome | Transient:
    start = f"Tool {_NAME!r} ended {name!r} after {program.timeout_s:g} s."
    if program.effect is EffectClass.WRITE:
        return UnknownOutcome(
            f"{start} It may have done a part of its work: look before it is repeated.",
            code="TIMEOUT",
            tool=_NAME,
        )
    return Transient(
        f"{start} Give it less to do, or ask the operator for more time.",
        code="TIMEOUT",
        tool=_NAME,
    )
