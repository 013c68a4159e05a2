"""`chart`: a PNG chart of data that the model passes, kept as an artifact.

matplotlib is imported at the first chart, so that the worker starts fast. Only its object API is
used: pyplot keeps global state and is not safe in threads. A lock covers drawing, as fonts are
cached in one place.
"""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from harness_common.contracts.tool import NewArtifact, Tool, ToolOutput
from harness_common.core.errors import Invalid
from harness_common.settings import Settings
from harness_worker.sdk import tool
from harness_worker.tools.write_report import slug

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAME = "chart"
_MAX_ROWS = 10_000
_MAX_SERIES = 12
_MAX_LABELS = 40
_MAX_LABEL_CHARS = 60
_MAX_BARS = 500
_SIZE_INCHES = (9.0, 5.0)
_DPI = 110
_CJK_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "SimHei",
)
"""Tried after the default font, which has no Chinese."""

Kind = Literal["bar", "line", "scatter", "hist"]
Cell = str | float | bool | None
Columns = Mapping[str, Sequence[Cell]]

_drawing = threading.Lock()


def build(settings: Settings) -> list[Tool]:
    """Build the tool; it has no settings."""
    del settings

    @tool(effect="read")
    def chart(  # noqa: PLR0913 - what a chart has
        *,
        kind: Annotated[Kind, Field(description="hist needs y only; the others need x and y.")],
        rows: Annotated[
            list[list[Cell]] | None,
            Field(
                max_length=_MAX_ROWS, description="Rows as sql_query returns them; needs columns."
            ),
        ] = None,
        columns: Annotated[
            list[str] | None, Field(description="The column names of rows, in order.")
        ] = None,
        data: Annotated[
            dict[str, list[Cell]] | None,
            Field(description="Instead of rows: column name to values, all of the same length."),
        ] = None,
        x: Annotated[
            str | None, Field(description="Column for the x axis; the first one when left out.")
        ] = None,
        y: Annotated[
            list[str] | None,
            Field(
                max_length=_MAX_SERIES,
                description="Columns to draw; every other numeric column when left out.",
            ),
        ] = None,
        title: Annotated[str, Field(max_length=200)] = "",
        x_label: Annotated[str, Field(max_length=100)] = "",
        y_label: Annotated[str, Field(max_length=100)] = "",
    ) -> ToolOutput:
        """Draw a bar, line, scatter or histogram chart and keep it as a PNG artifact.

        Use it when a picture says more than a table. Pass the rows and columns of a sql_query
        result as they are, or data as {"month": ["Jan", "Feb"], "sales": [3, 4]}. Aggregate first:
        a chart of few points is read best.

        Returns {name, kind, x, y, points}: the name of the saved picture, to be referred to in a
        report.
        Limits: 10,000 rows, 12 series, 500 bars; a missing value (null) leaves a gap.
        """
        table = _columns(rows, columns, data)
        plan = _plan(kind, table, x, y)
        png = _draw(plan, title, x_label, y_label)
        name = f"{slug(title) or kind}.png"
        points = max(len(values) for values in plan.series.values())
        content = {
            "name": name,
            "kind": kind,
            "x": plan.x,
            "y": list(plan.series),
            "points": points,
        }
        return ToolOutput(content, (NewArtifact(name, "image/png", png),))

    return [chart]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to draw, checked."""

    kind: Kind
    x: str | None
    x_values: Sequence[Cell]
    series: dict[str, list[float]]


def _refused(cause: str) -> Invalid:
    return Invalid(f"Tool {_NAME!r} drew nothing: {cause}.", code="ARGUMENTS_INVALID", tool=_NAME)


def _columns(
    rows: list[list[Cell]] | None, names: list[str] | None, data: dict[str, list[Cell]] | None
) -> Columns:
    """Bring both ways of passing data into one: column name to values."""
    if (rows is None) == (data is None):
        raise _refused("pass either rows with columns, or data")
    table: Columns = _transposed(rows or [], names or []) if data is None else data
    lengths = {len(values) for values in table.values()}
    if not table or lengths == {0}:
        raise _refused("there are no values; pass at least one row")
    if len(lengths) > 1:
        raise _refused(f"the columns differ in length ({sorted(lengths)}); make them equal")
    if max(lengths) > _MAX_ROWS:
        raise _refused(f"there are more than {_MAX_ROWS} rows; aggregate first")
    return table


def _transposed(rows: list[list[Cell]], names: list[str]) -> dict[str, list[Cell]]:
    if not names:
        raise _refused("rows need columns; pass the column names as sql_query returns them")
    if len(set(names)) != len(names):
        raise _refused("two columns have the same name; rename one")
    for index, row in enumerate(rows):
        if len(row) != len(names):
            raise _refused(f"row {index} has {len(row)} values for {len(names)} columns")
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def _plan(kind: Kind, table: Columns, x: str | None, y: list[str] | None) -> _Plan:
    for name in [x, *(y or [])]:
        if name is not None and name not in table:
            raise _refused(f"there is no column {name!r}; columns: {', '.join(table)}")
    on_x = None if kind == "hist" else x or next((n for n in table if n not in (y or [])), None)
    if on_x is None and kind != "hist":
        raise _refused("there is no column left for the x axis; name it in x")
    chosen = y or [name for name in table if name != on_x and _is_numeric(table[name])]
    if not chosen:
        raise _refused("no column has numbers; name numeric columns in y")
    if len(chosen) > _MAX_SERIES:
        raise _refused(f"there are more than {_MAX_SERIES} series; choose some in y")
    series = {name: _numbers(name, table[name]) for name in chosen}
    x_values: Sequence[Cell] = table[on_x] if on_x is not None else ()
    if kind == "bar" and len(x_values) > _MAX_BARS:
        raise _refused(f"{len(x_values)} bars cannot be read; aggregate to at most {_MAX_BARS}")
    if kind == "hist" and not any(math.isfinite(v) for values in series.values() for v in values):
        raise _refused("there are no numbers to count")
    return _Plan(kind, on_x, x_values, series)


def _is_numeric(values: Sequence[Cell]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(_is_number(value) for value in present)


def _is_number(value: Cell) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(name: str, values: Sequence[Cell]) -> list[float]:
    """Turn a column into floats; null becomes NaN, which is drawn as a gap."""
    numbers: list[float] = []
    for index, value in enumerate(values):
        try:
            number = math.nan if value is None else float(value)
        except (ValueError, OverflowError):
            raise _refused(f"{name}[{index}] is {str(value)[:40]!r}, not a number") from None
        # Beyond this the axis arithmetic of matplotlib overflows.
        if math.isinf(number) or abs(number) > 1e300:
            raise _refused(f"{name}[{index}] is too large to draw")
        numbers.append(number)
    return numbers


def _draw(plan: _Plan, title: str, x_label: str, y_label: str) -> bytes:
    """Draw the plan; returns PNG bytes."""
    with _drawing:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - slow to import
        from matplotlib.figure import Figure  # noqa: PLC0415

        figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        _draw_series(axes, plan)
        axes.set_title(title)
        axes.set_xlabel(x_label or plan.x or "")
        axes.set_ylabel(y_label or (next(iter(plan.series)) if len(plan.series) == 1 else ""))
        if len(plan.series) > 1:
            axes.legend()
        axes.grid(visible=True, alpha=0.3)
        _plain_text(figure)
        out = io.BytesIO()
        canvas.print_figure(out, format="png")
    return out.getvalue()


def _draw_series(axes: Axes, plan: _Plan) -> None:
    if plan.kind == "hist":
        for name, values in plan.series.items():
            finite = [value for value in values if math.isfinite(value)]
            axes.hist(finite, bins=min(30, max(1, len(set(finite)))), alpha=0.6, label=_label(name))
        return
    numeric = plan.kind != "bar" and _is_numeric(plan.x_values)
    places = (
        _numbers(str(plan.x), plan.x_values)
        if numeric
        else [float(i) for i in range(len(plan.x_values))]
    )
    width = 0.8 / len(plan.series)
    for index, (name, values) in enumerate(plan.series.items()):
        label = _label(name)
        if plan.kind == "bar":
            shift = (index - (len(plan.series) - 1) / 2) * width
            axes.bar([place + shift for place in places], values, width=width, label=label)
        elif plan.kind == "line":
            axes.plot(places, values, marker="o" if len(values) <= _MAX_LABELS else "", label=label)
        else:
            axes.scatter(places, values, s=18, label=label)
    if not numeric:
        step = -(-len(places) // _MAX_LABELS)
        labels = ["" if v is None else _label(str(v)) for v in plan.x_values[::step]]
        crowded = sum(map(len, labels)) > 80
        axes.set_xticks(places[::step], labels, rotation=45 if crowded else 0)


def _label(text: str) -> str:
    # A leading underscore would hide a series from the legend.
    return text.replace("\n", " ").lstrip("_")[:_MAX_LABEL_CHARS] or "-"


def _plain_text(figure: Figure) -> None:
    """Show all text as it is: a `$` starts no formula, and Chinese has a font where one is
    installed.
    """
    from matplotlib.text import Text  # noqa: PLC0415

    fonts = _fonts()
    for text in figure.findobj(Text):
        if isinstance(text, Text):
            text.set_parse_math(False)
            text.set_fontfamily(fonts)


@cache
def _fonts() -> list[str]:
    from matplotlib import font_manager  # noqa: PLC0415

    present = {font.name for font in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in _CJK_FONTS if name in present)]
