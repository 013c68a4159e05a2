"""Tools that say a secret wherever a tool can say something, in every encoding: loaded by workers
under test. `leaky_notes` says what is no secret.

With `UNREDACTED` set the process forgets to blot anything out: the control.
"""

from __future__ import annotations

import base64
import logging
import os
from urllib.parse import quote

import structlog

from harness_common import redaction
from harness_common.contracts.tool import NewArtifact, ToolOutput
from harness_common.core.errors import Permanent
from harness_worker.sdk import ToolContext, tool

NAME = "CANARY"

if os.environ.get("UNREDACTED"):
    redaction.redactor.add = lambda *_: None  # type: ignore[method-assign]


def said(value: str) -> str:
    raw = value.encode()
    forms = [
        value,
        raw.hex(),
        raw.hex().upper(),
        quote(value, safe=""),
        quote(value, safe="").lower(),
    ]
    for before in (b"", b"x", b"yz"):
        forms.append(base64.b64encode(before + raw + b"tail").decode())
        forms.append(base64.urlsafe_b64encode(before + raw).decode())
    return " | ".join(forms)


@tool(effect="read", secrets=[NAME])
async def leak(ctx: ToolContext) -> ToolOutput:
    """Say it in the result, progress, an artifact, its name, logs and what is printed."""
    text = said(await ctx.secret(NAME))
    await ctx.progress(text)
    await ctx.artifact(f"{text[:40]}.txt", "text/plain", text.encode())
    structlog.get_logger().warning("tool.leaked", what=text, also={"deep": [text]})
    logging.getLogger("a.library").error("it says %s", text)
    print(text)  # noqa: T201 - so do libraries
    data = f"first\n{text}\nlast".encode()
    return ToolOutput({"said": text, text: [text]}, (NewArtifact("more.txt", "text/plain", data),))


@tool(effect="read", secrets=[NAME])
async def leak_crash(ctx: ToolContext) -> str:
    """Say it in an exception that nobody named."""
    raise ValueError("x" * 1990 + said(await ctx.secret(NAME)))


@tool(effect="read", secrets=[NAME])
async def leak_named(ctx: ToolContext) -> str:
    """Say it in a named error."""
    raise Permanent(said(await ctx.secret(NAME)), code="LEAKED", detail=await ctx.secret(NAME))


@tool(effect="read", secrets=[NAME])
async def leak_much(ctx: ToolContext) -> str:
    """Say it across the place where a long result is cut."""
    value = await ctx.secret(NAME)
    limit = 16 * 1024
    return "." * (limit - len(value) // 2) + value + said(value) * 50


@tool(effect="write", secrets=[NAME])
async def leak_write(ctx: ToolContext) -> str:
    """Say it in the result of an effect, which the ledger gets first."""
    return said(await ctx.secret(NAME))


@tool(effect="read")
async def leak_undeclared(ctx: ToolContext) -> str:
    """Ask for a secret without having declared it."""
    return await ctx.secret(NAME)


@tool(effect="read")
async def leaky_notes(ctx: ToolContext, note: str) -> ToolOutput:
    """Say a note in a result, progress and an artifact."""
    await ctx.progress(f"noting {note}")
    return ToolOutput(f"noted: {note}", (NewArtifact("note.txt", "text/plain", note.encode()),))
