"""What a model saw in a step, as the client returns it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from harness_api.client.types.view import View


class ContextTokens(View):
    """How large a prompt was, in estimated tokens."""

    total: int
    limit: int
    ratio: float = 1.0
    by: dict[str, int] = Field(default_factory=dict)
    reported_input: int = 0
    reported_output: int = 0


class ContextMessage(View):
    """One message as it was sent."""

    n: int | None
    run_id: str
    role: str
    kind: str
    trust: str
    tokens: int
    content: list[dict[str, Any]]

    @property
    def text(self) -> str:
        """What it says, in words."""
        return "".join(_words(block) for block in self.content)


class ContextTool(View):
    """A tool as it was offered."""

    name: str
    description: str
    input_schema: Any = None


class LeftOut(View):
    """Something that was not shown, and why."""

    what: str
    count: int
    why: str
    step: int | None = None


class Context(View):
    """What a model saw in one step."""

    run_id: str
    step: int
    model: str
    tokens: ContextTokens
    system: str
    tools: tuple[ContextTool, ...] = ()
    messages: tuple[ContextMessage, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


def _words(block: dict[str, Any]) -> str:
    if block.get("type") == "text":
        return str(block["text"])
    if block.get("type") == "tool_use":
        return f"[{block['name']} {block.get('raw') or block['input']}]"
    return str(block.get("content", ""))
