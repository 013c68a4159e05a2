"""Forms of names that several definitions share."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
ToolName = Annotated[str, Field(pattern=r"^([a-zA-Z0-9_-]{1,64}|[a-z0-9-]{1,32}__\*)$")]
"""A tool, or `server__*`: all tools of an MCP server that the tenant has accepted."""
ModelName = Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,50}/[^\s]{1,150}$")]
"""`provider/model`."""
SkillRef = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}(@[1-9][0-9]{0,8})?$", examples=["audit@2"])
]
"""`name@version`, or `name` for the newest version when a run starts."""
