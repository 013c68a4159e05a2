"""Check the models of the run's protocol: `python -m tests.model.check`.

Spin turns each case of `plan.py` into a search through all states. Every property has to hold in
the whole model and to break when its mechanism is taken out; exits 1 when one verdict is not the
expected one, 2 when a tool is missing. tests/model/README.md says what is modelled.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.model.plan import CASES, PROGRESS, Case

HERE: Final = Path(__file__).parent
_MEMORY_MB: Final = 1000
_PATIENCE_S: Final = 100.0
_DEPTH: Final = 200_000
# A search that breaks off early is quick in any build; one through the whole model pays for -O1.
_QUICK: Final = ("-O0", "-w18")
_LONG: Final = ("-O1", "-w22")
_NOISE: Final = ("Never claim", "ltl ", "<<<<<", "spin:", "#", "pan:")


class ToolMissing(Exception):
    """Spin or the C compiler is not installed."""


class ModelBroken(Exception):
    """A model cannot be built, or its search ended in a way that is no verdict."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the search for one property gave."""

    model: str
    switches: str
    what: str
    formula: str
    expected: str
    verdict: str
    states: int
    time_s: float
    memory_mb: float

    @property
    def right(self) -> bool:
        """Tell whether it is what the plan says."""
        return self.verdict == self.expected


def missing_tools() -> list[str]:
    """List the tools that are not installed."""
    return [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]


def need_tools() -> None:
    """Raise `ToolMissing` unless everything is there."""
    if missing := missing_tools():
        raise ToolMissing(
            f"{' and '.join(missing)} not found; on Debian and Ubuntu: apt-get install spin gcc"
        )


def run_case(case: Case, *, stories: list[str] | None = None) -> Iterator[Found]:
    """Build one case in a folder of its own and search for each of its properties.

    Appends how each broken property came about to `stories`. Raises `ModelBroken`.
    """
    with tempfile.TemporaryDirectory(prefix="harness-model-") as name:
        folder = Path(name)
        optimise, hash_bits = _LONG if case.whole else _QUICK
        _build(case, folder, optimise)
        for expected, properties in (("holds", case.holds), ("breaks", case.breaks)):
            for prop in properties:
                found = _search(case, folder, prop, expected, hash_bits)
                if stories is not None and found.verdict == "breaks":
                    stories.append(_story(case, folder, prop))
                yield found


def _source(case: Case) -> list[str]:
    return [*(f"-D{switch}" for switch in case.switches), f"{case.model}.pml"]


def _build(case: Case, folder: Path, optimise: str) -> None:
    shutil.copy(HERE / f"{case.model}.pml", folder)
    made = _call(["spin", "-a", *_source(case)], folder)
    if made.returncode or not (folder / "pan.c").exists():
        raise ModelBroken(f"spin cannot read {case.name}:\n{made.stdout}")
    made = _call(
        ["gcc", optimise, "-w", f"-DMEMLIM={_MEMORY_MB}", "-DNFAIR=3", "-o", "pan", "pan.c"],
        folder,
    )
    if made.returncode:
        raise ModelBroken(f"gcc cannot build {case.name}:\n{made.stdout}")


def _call(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            cwd=folder,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelBroken(f"{' '.join(command)} took longer than {_PATIENCE_S:g} s") from error


def _search(case: Case, folder: Path, prop: str, expected: str, hash_bits: str) -> Found:
    fair = ["-f"] if prop in PROGRESS else []
    begun = time.perf_counter()
    said = _call(["./pan", "-a", *fair, hash_bits, f"-m{_DEPTH}", "-N", prop], folder).stdout
    time_s = time.perf_counter() - begun
    try:
        verdict = verdict_of(said, progress=bool(fair))
    except ModelBroken as error:
        raise ModelBroken(f"{case.name}, {prop}: {error}") from error
    return Found(
        case.model,
        " ".join(case.switches),
        case.what,
        prop,
        expected,
        verdict,
        int(_number(r"([\d.e+]+) states, stored", said)),
        round(time_s, 2),
        round(_number(r"([\d.]+)\s+total actual memory usage", said), 1),
    )


def verdict_of(said: str, *, progress: bool) -> str:
    """Read the verdict off what the search printed.

    Raises `ModelBroken` for a search that was cut short, or that broke on something other than the
    property (an index out of range, say).
    """
    errors = re.search(r"errors: (\d+)", said)
    complaints = re.findall(
        r"^(?:pan:\d+:|error:|pan: reached|Error:).*|^.*too small.*", said, re.M
    )
    if errors is not None and errors[1] == "0" and not complaints:
        return "holds"
    by_property = r"pan:1: acceptance cycle" if progress else r"pan:1: assertion violated  !\("
    if len(complaints) == 1 and re.match(by_property, complaints[0]):
        return "breaks"
    raise ModelBroken("the search gave no verdict:\n" + ("\n".join(complaints) or said))


def _number(pattern: str, said: str) -> float:
    match = re.search(pattern, said)
    if match is None:
        raise ModelBroken(f"the search did not print {pattern!r}:\n{said}")
    return float(match[1])


def _story(case: Case, folder: Path, prop: str) -> str:
    """Tell the counterexample in the words that the model prints along its way."""
    said = _call(["spin", "-t", "-T", "-B", *_source(case)], folder).stdout
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith(_NOISE)]
    return "\n  ".join([f"{case.name}, {prop}:", *lines])


def table(rows: Sequence[Found]) -> str:
    """Lay the findings out for a terminal."""
    head = ("model", "property", "verdict", "states", "s", "MB", "switches: what is different")
    body = [
        (
            row.model,
            row.formula,
            row.verdict if row.right else f"{row.verdict.upper()} (!)",
            f"{row.states:,}",
            f"{row.time_s:.2f}",
            f"{row.memory_mb:.0f}",
            f"{row.switches}: {row.what}" if row.switches else row.what,
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    right = {3, 4, 5}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (head, *body)
    )


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.model.check", description="Check the models of the run's protocol."
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("-k", metavar="TEXT", default="", help="only cases with TEXT in their name")
    parser.add_argument(
        "--stories", action="store_true", help="tell how each broken property came about"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases and print what was found."""
    options = parse(argv)
    cases = [case for case in CASES if options.k.lower() in case.name.lower()]
    if not cases:
        sys.stderr.write(f"no case has {options.k!r} in its name\n")
        return 2
    rows: list[Found] = []
    stories: list[str] | None = [] if options.stories else None
    begun = time.perf_counter()
    try:
        need_tools()
        for case in cases:
            rows.extend(run_case(case, stories=stories))
    except ToolMissing as error:
        sys.stderr.write(f"model: {error}\n")
        return 2
    except ModelBroken as error:
        sys.stderr.write(f"model: {error}\n")
        return 1
    wrong = [row for row in rows if not row.right]
    took_s = round(time.perf_counter() - begun, 1)
    if options.json:
        checks = [asdict(row) | {"right": row.right} for row in rows]
        out = json.dumps({"right": not wrong, "time_s": took_s, "checks": checks}, indent=2)
    else:
        summary = f"{len(rows)} verdicts, {len(wrong)} not as expected, {took_s} s with compiling"
        out = "\n\n".join([*(stories or ()), table(rows), summary])
    sys.stdout.write(out + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
