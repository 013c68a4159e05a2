"""Copies the public data sets that the analyst asks into a folder of the operator.

Called by the demo; alone: `python -m examples.analyst.prepare FOLDER`. The package vega-datasets is
found but not imported, since that would load pandas for nothing.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Final

FILES: Final = ("cars.json", "iowa-electricity.csv", "seattle-weather.csv")


def prepare(folder: Path) -> list[Path]:
    """Copy the files into `folder`, which `HARNESS_TOOL__SQL_SOURCES` names; return the copies.

    Raises `SystemExit` that says what to install when the package is not there.
    """
    spec = importlib.util.find_spec("vega_datasets")
    if spec is None or spec.origin is None:
        raise SystemExit("The package vega-datasets is not installed: run `make setup`.")
    source = Path(spec.origin).parent / "_data"
    folder.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copyfile(source / name, folder / name)) for name in FILES]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m examples.analyst.prepare FOLDER")
    for copied in prepare(Path(sys.argv[1])):
        print(copied)
