"""What a benchmark is asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line. `quick` means small counts: a trial of the code, no
    measurement.
    """

    quick: bool = False
    pairs: int = 5
