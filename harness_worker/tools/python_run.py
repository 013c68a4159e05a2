"""`python_run` and `shell_run`: code that the model writes, in a cage."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import Field

from harness_common.contracts.sandbox import CageFile, CageJob, CageResult, Limits
from harness_common.contracts.tool import NewArtifact, Tool, ToolContext, ToolOutput
from harness_common.core.errors import Invalid, Permanent
from harness_common.core.message import Json
from harness_common.settings import Settings
from harness_worker.sdk import tool
from harness_worker.tools.caged import META_KEY, CagedProgram

_LIMITS: Final = Limits()
_MAX_CODE_CHARS: Final = 200_000
_MAX_FILES: Final = 32
_TIMEOUT_S: Final = 30.0
_SHOWN_CHARS: Final = 200_000

Code = Annotated[str, Field(min_length=1, max_length=_MAX_CODE_CHARS)]
Files = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}$")],
        Annotated[str, Field(pattern=r"^art_[A-Za-z0-9_-]{1,80}$")],
    ],
    Field(
        max_length=_MAX_FILES,
        description="Artifacts to put into the work folder: path there → artifact id.",
    ),
]
Stdin = Annotated[str, Field(max_length=1024 * 1024, description="Text for standard input.")]

_ABOUT: Final = (
    "Returns {exit_code, stdout, stderr, files}; files that it leaves in the work folder are kept "
    "as artifacts.\n"
    "Limits: 3 s of processor time, 512 MiB of memory, 64 processes, 64 MiB of files, 1 MiB of "
    "output, 30 s in all; no network; nothing is kept between calls but artifacts."
)


def build(settings: Settings) -> list[Tool]:
    """Build both tools; they have no settings of their own."""
    del settings
    return [_python(), _shell()]


def _python() -> Tool:
    @tool(
        effect="read",
        sandbox="B",
        permission_tags=["code"],
        timeout_s=_TIMEOUT_S,
        limits=_LIMITS,
        description=(
            "Run Python code in a sandbox and return what it prints.\n\n"
            "Use it to calculate, to transform data and to make files. The current folder is empty "
            "but for `files`. The standard library is there; other packages may be.\n\n" + _ABOUT
        ),
        meta={META_KEY: _program("python")},
    )
    def python_run(code: Code, files: Files = {}, stdin: Stdin = "") -> Json:  # noqa: B006
        raise _only_caged(code, files, stdin)

    return python_run


def _shell() -> Tool:
    @tool(
        effect="read",
        sandbox="B",
        permission_tags=["code"],
        timeout_s=_TIMEOUT_S,
        limits=_LIMITS,
        description=(
            "Run a shell script in a sandbox and return what it prints.\n\n"
            "Use it for text tools and pipes over `files`, which stand in the current folder. "
            "It is a POSIX system without network.\n\n" + _ABOUT
        ),
        meta={META_KEY: _program("shell")},
    )
    def shell_run(script: Code, files: Files = {}, stdin: Stdin = "") -> Json:  # noqa: B006
        raise _only_caged(script, files, stdin)

    return shell_run


def _program(kind: Literal["python", "shell"]) -> CagedProgram:
    async def prepare(ctx: ToolContext, arguments: Mapping[str, Json]) -> CageJob:
        source = arguments["code" if kind == "python" else "script"]
        wanted = arguments.get("files") or {}
        files = []
        for path, artifact in wanted.items():
            if ".." in PurePosixPath(path).parts:
                raise Invalid(
                    f"`files`: {path!r} leaves the work folder; use a plain relative path",
                    code="ARGUMENTS_INVALID",
                )
            files.append(CageFile(path, await ctx.read_artifact(artifact)))
        if sum(len(f.data) for f in files) > _LIMITS.disk_bytes // 2:
            raise Invalid(
                f"`files` have more than {_LIMITS.disk_bytes // 2} bytes together; take fewer",
                code="ARGUMENTS_INVALID",
            )
        stdin = str(arguments.get("stdin") or "").encode("utf-8", "surrogateescape")
        return CageJob(kind, str(source), tuple(files), stdin, limits=_LIMITS)

    return CagedProgram(prepare, _finish)


def _finish(result: CageResult, arguments: Mapping[str, Json]) -> ToolOutput:
    content: dict[str, Json] = {
        "exit_code": result.exit_code,
        "stdout": result.stdout[:_SHOWN_CHARS],
        "stderr": result.stderr[:_SHOWN_CHARS],
        "files": [f.path for f in result.files],
    }
    if result.left_out:
        content["files_left_out"] = list(result.left_out)
    artifacts = tuple(
        NewArtifact(f.path, mimetypes.guess_type(f.path)[0] or "application/octet-stream", f.data)
        for f in result.files
    )
    # An artifact may hold what a web page said, and what is computed from it is no better.
    return ToolOutput(content, artifacts, untrusted=bool(arguments.get("files")))


def _only_caged(*_: object) -> Permanent:
    return Permanent("this tool runs in a sandbox only", code="SANDBOX_UNAVAILABLE")
