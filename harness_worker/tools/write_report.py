"""`write_report`: keeps a Markdown report as an artifact; the demo's one writing tool."""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated

from pydantic import Field

from harness_common.contracts.tool import NewArtifact, Tool, ToolOutput
from harness_common.core.errors import Invalid
from harness_common.settings import Settings
from harness_worker.sdk import tool

_NAME = "write_report"
_MAX_BYTES = 1024 * 1024
_MAX_STEM_CHARS = 60


def build(settings: Settings) -> list[Tool]:
    """Build the tool; it has no settings."""
    del settings

    @tool(effect="write", permission_tags=["reports", "write"])
    async def write_report(
        title: Annotated[
            str, Field(min_length=1, max_length=200, description="The heading of the report.")
        ],
        markdown: Annotated[
            str, Field(min_length=1, description="The body in Markdown, without the title.")
        ],
    ) -> ToolOutput:
        """Save a finished report in Markdown for the person who asked.

        Use it once, at the end, when the findings are complete; it cannot be changed afterwards.
        The title is put above the body as a heading. Refer to charts by their artifact names.

        Returns {name, size_bytes}: the name of the saved artifact.
        Limits: 1 MiB.
        """
        try:
            data = f"# {' '.join(title.split())}\n\n{markdown.strip()}\n".encode()
        except UnicodeEncodeError:
            raise _refused("the text is not valid Unicode; leave out lone surrogates") from None
        if len(data) > _MAX_BYTES:
            raise _refused(f"it has {len(data)} bytes, {_MAX_BYTES} are allowed; shorten it")
        name = f"{slug(title) or 'report'}.md"
        report = NewArtifact(name, "text/markdown", data)
        return ToolOutput({"name": name, "size_bytes": len(data)}, (report,))

    return [write_report]


def slug(title: str) -> str:
    """Make a file name stem of a title: letters and digits of any script, joined by hyphens."""
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", title).lower())
    return "-".join(words)[:_MAX_STEM_CHARS].strip("-")


def _refused(cause: str) -> Invalid:
    return Invalid(f"Tool {_NAME!r} saved nothing: {cause}.", code="ARGUMENTS_INVALID", tool=_NAME)
