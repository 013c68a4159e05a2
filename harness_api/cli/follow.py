"""The live view of a run: lines of what happened, and below them what happens now.

On a terminal the lower part moves: the answer as it comes, tokens, cost, time. Elsewhere, lines
only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, TextIO

from harness_api.cli.narrate import Narrator, progress_text
from harness_api.cli.output import SCRIPTED, clean, print_json_line, usd
from harness_common.core import events as ev

if TYPE_CHECKING:
    from rich.console import RenderableType

    from harness_api.client import Client, Event, Live

_TAIL_CHARS = 600
_REFRESH_PER_S = 8


class View:
    """What is known of a run from its stream so far. `take` is told each item in turn."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.first_at: datetime | None = None
        self.began = time.monotonic()
        self.step = 0
        self.text = ""
        """The answer that is coming; not durable."""
        self.tool = ""
        self.tokens = 0
        self.cost_usd = 0.0
        self.scripted = False
        self._narrator = Narrator()

    def take(self, item: Event | Live) -> str:
        """Note an item; return the line that tells it, or nothing."""
        from harness_api.client import Live

        if isinstance(item, Live):
            self._live(item)
            return ""
        if self.first_at is None:
            self.first_at = item.at
        if item.type in {ev.STEP_COMPLETED, ev.STEP_FAILED}:
            self.step, self.text, self.tool = item.step or self.step, "", ""
        if item.type == ev.MODEL_ANSWERED:
            used = item.payload
            self.tokens += (used.get("input_tokens") or 0) + (used.get("output_tokens") or 0)
            self.cost_usd += used.get("cost_usd") or 0.0
            self.scripted = self.scripted or used.get("scripted") is True
        line = self._narrator.line(item)
        after_s = (item.at - self.first_at).total_seconds()
        return f"+{after_s:7.2f} s  {_one_line(line)}" if line else ""

    def _live(self, item: Live) -> None:
        if item.type == ev.LIVE_DELTA:
            self.text += item.text
        elif item.type == ev.TOOL_PROGRESS:
            self.tool = progress_text(item.model_extra or {})

    def __rich__(self) -> RenderableType:
        """Draw the part that moves."""
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        parts = [
            f"step {self.step + 1}",
            f"{self.tokens} tokens",
            usd(self.cost_usd),
            f"{time.monotonic() - self.began:.0f} s",
        ]
        if self.scripted:
            parts.append(SCRIPTED)
        table = Table.grid(padding=(0, 1))
        table.add_row(Spinner("dots"), Text("  ".join(parts), style="bold"))
        if self.tool:
            table.add_row("", Text(self.tool, style="dim"))
        if self.text:
            table.add_row("", Text(clean(self.text[-_TAIL_CHARS:]), style="cyan"))
        return table


def _one_line(text: str) -> str:
    return clean(text).replace("\n", " ")


def follow(client: Client, run_id: str, *, after: int = 0, as_json: bool = False) -> None:
    """Show a run until it is over or needs a person. With JSON, one line an event or live item."""
    items = client.runs.stream(run_id, after)
    if as_json:
        for item in items:
            print_json_line(item)
        return
    view = View(run_id)
    with _screen(view, sys.stdout) as show:
        for item in items:
            if line := view.take(item):
                show.line(line)


class _Plain:
    """Lines and nothing else."""

    def line(self, text: str) -> None:
        """Show a line that stays."""
        print(text, flush=True)


class _Moving:
    """Lines above a part that moves."""

    def __init__(self, console: object) -> None:
        self._console = console

    def line(self, text: str) -> None:
        """Show a line that stays."""
        from rich.console import Console
        from rich.text import Text

        assert isinstance(self._console, Console)
        self._console.print(Text(text, style=_style(text)), soft_wrap=True)


@contextmanager
def _screen(view: View, stdout: TextIO) -> Iterator[_Plain | _Moving]:
    if not stdout.isatty():
        yield _Plain()
        return
    from rich.console import Console
    from rich.live import Live as Screen

    console = Console(highlight=False)
    with Screen(view, console=console, refresh_per_second=_REFRESH_PER_S, transient=True):
        yield _Moving(console)


def _style(line: str) -> str:
    if " failed" in line or "lost (" in line:
        return "red"
    if "succeeded (" in line:
        return "green"
    return "yellow" if " waits " in line or "cancel" in line else ""
