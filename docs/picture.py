"""Write docs/straight-line.svg: the one picture of the documentation.

`make diagrams` runs it, and `--check` (tests/unit/test_docs.py) fails when the file is stale. Drawn
by hand in numbers, so that it is the same everywhere: code hosts, editors, paper, dark or light.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

OUT: Final = Path(__file__).parent / "straight-line.svg"
WIDTH, HEIGHT = 960, 384
STYLE: Final = """
  svg { color-scheme: light dark; }
  .paper { fill: #ffffff; }
  text { font: 14px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1a2029; }
  .small { font-size: 12.5px; fill: #4b5563; }
  .number { font-weight: 600; fill: #4353d9; }
  .title { font-weight: 600; }
  .box { fill: #f1f3f6; stroke: #8b95a5; stroke-width: 1.2; }
  .fact { fill: #e6ecfd; stroke: #2347c5; }
  .loss { fill: #fdf1d8; stroke: #855400; stroke-dasharray: 5 4; }
  .line { fill: none; stroke: #4b5563; stroke-width: 1.5; marker-end: url(#tip); }
  .tip { fill: #4b5563; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0f1217; }
    text { fill: #e7eaf0; }
    .small { fill: #bac2ce; }
    .number { fill: #8b98ff; }
    .box { fill: #1b2029; stroke: #6f7a8a; }
    .fact { fill: #1c2749; stroke: #9db4ff; }
    .loss { fill: #33270f; stroke: #f0c169; }
    .line { stroke: #bac2ce; }
    .tip { fill: #bac2ce; }
  }
"""


@dataclass(frozen=True, slots=True)
class Box:
    """One part of the platform."""

    x: int
    y: int
    width: int
    title: str
    text: str
    kind: str = ""
    height: int = 58

    def svg(self) -> str:
        """Draw it."""
        middle = self.x + self.width // 2
        return (
            f'<rect class="box {self.kind}" x="{self.x}" y="{self.y}" width="{self.width}" '
            f'height="{self.height}" rx="8"/>'
            f'<text class="title" x="{middle}" y="{self.y + 25}" text-anchor="middle">'
            f"{escape(self.title)}</text>"
            f'<text class="small" x="{middle}" y="{self.y + 44}" text-anchor="middle">'
            f"{escape(self.text)}</text>"
        )


BOXES: Final = (
    Box(16, 44, 140, "you", "client, console"),
    Box(240, 44, 140, "API", "checks, accepts"),
    Box(330, 178, 160, "scheduler", "admits, wakes, reaps"),
    Box(480, 44, 150, "doorbell", "Celery on Redis", "loss"),
    Box(734, 44, 210, "worker", "does one step at a time"),
    Box(824, 178, 120, "model, tools", "slow, outside"),
    Box(560, 178, 140, "Redis", "leases, live text", "loss"),
    Box(210, 310, 734, "Postgres", "runs, steps, events, effects: every fact", "fact"),
)


@dataclass(frozen=True, slots=True)
class Arrow:
    """Who does what to whom."""

    path: str
    x: int
    y: int
    number: str
    text: str
    anchor: str = "middle"

    def svg(self) -> str:
        """Draw it."""
        number = f'<tspan class="number">{self.number}</tspan> ' if self.number else ""
        return (
            f'<path class="line" d="{self.path}"/>'
            f'<text class="small" x="{self.x}" y="{self.y}" text-anchor="{self.anchor}">'
            f"{number}{escape(self.text)}</text>"
        )


ARROWS: Final = (
    Arrow("M156 62 H234", 196, 54, "1", "a goal"),
    Arrow("M240 88 H162", 200, 106, "9", "events"),
    Arrow("M270 102 V304", 262, 210, "2", "run: queued", "end"),
    Arrow("M410 236 V304", 418, 274, "3", "admit", "start"),
    Arrow("M380 73 H474", 428, 64, "4", "ring"),
    Arrow("M440 178 L510 108", 466, 134, "", "ring again", "end"),
    Arrow("M630 73 H728", 680, 64, "5", "look at R"),
    Arrow("M738 102 L662 172", 690, 136, "", "lease", "end"),
    Arrow("M766 102 V304", 758, 274, "6", "claim, load", "end"),
    Arrow("M884 102 V172", 892, 142, "7", "step", "start"),
    Arrow("M796 102 V304", 804, 274, "8", "commit", "start"),
    Arrow("M800 44 C780 6 600 6 562 38", 680, 32, "", "ring for the next step"),
)


def render() -> str:
    """Draw the whole picture."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="The straight line of a run">',
        "<!-- Written by docs/picture.py (`make diagrams`). -->",
        f"<style>{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto-start-reverse"><path class="tip" d="M0 0 L8 4 L0 8 z"/>'
        "</marker></defs>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="10"/>',
        *(box.svg() for box in BOXES),
        *(arrow.svg() for arrow in ARROWS),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    """Write the picture, or with `--check` say whether it is stale."""
    if arguments == ["--check"]:
        stale = not OUT.exists() or OUT.read_text(encoding="utf-8") != render()
        if stale:
            print(f"{OUT.name} is stale: run `make diagrams`.", file=sys.stderr)
        return int(stale)
    OUT.write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
