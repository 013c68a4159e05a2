"""The agent `analyst`: it answers questions about data files with SQL, a chart and a report.

`agent("scripted/analyst")` brings its answers along: a script, declared in advance, whose tool
calls are real. Where a later answer needs a number, the script either puts the earlier result in
(`{{result:N}}`) or says what the data hold; tests/e2e/test_demo.py proves that the two agree.

`python -m examples.analyst.agent [MODEL] > agent.json` writes it for `harness agents apply`.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

SCRIPTED: Final = "scripted/analyst"
QUESTION: Final = (
    "How did the fuel economy of cars change between the model years 1970 and 1982, "
    "and where did the most economical ones come from?"
)
NOTES: Final = "findings.txt"
"""The file that `append_line` writes to, in the outbox folder below `HARNESS_TOOL__FILE_ROOT`."""

_TOOLS: Final = ("sql_schema", "sql_query", "calculate", "append_line", "chart", "write_report")

_SYSTEM: Final = f"""You are an analyst. You answer questions about the tables you can query, and \
only from what the queries return.

Work in this order, with one kind of tool at a time:
1. sql_schema, to learn the tables.
2. sql_query, at least twice; let the database count and average.
3. calculate, for every number that you derive from query results.
4. append_line, exactly once, to {NOTES!r}: your main finding in one line.
5. chart, once.
6. write_report, once: findings, numbers with the query they come from, and the chart as
   ![title](/v1/artifacts/ID/content), where ID is the art_... of the chart's result.
Then answer the question in three sentences at most."""

BY_ORIGIN: Final = """SELECT Origin AS origin, count(*) AS cars,
       round(avg(Miles_per_Gallon), 1) AS mean_mpg, max(Miles_per_Gallon) AS best_mpg
FROM cars WHERE Miles_per_Gallon IS NOT NULL
GROUP BY origin ORDER BY mean_mpg DESC"""
BY_YEAR: Final = """SELECT year(Year) AS model_year,
       round(avg(Miles_per_Gallon) FILTER (Origin = 'Japan'), 1) AS japan,
       round(avg(Miles_per_Gallon) FILTER (Origin = 'Europe'), 1) AS europe,
       round(avg(Miles_per_Gallon) FILTER (Origin = 'USA'), 1) AS usa,
       round(avg(Miles_per_Gallon), 1) AS all_cars
FROM cars WHERE Miles_per_Gallon IS NOT NULL
GROUP BY model_year ORDER BY model_year"""

COLUMNS: Final = ("model_year", "japan", "europe", "usa", "all_cars")
ROWS: Final = (
    (1970, 25.5, 25.2, 15.3, 17.7),
    (1971, 29.5, 28.8, 18.1, 21.3),
    (1972, 24.2, 22.0, 16.3, 18.7),
    (1973, 20.0, 24.0, 15.0, 17.1),
    (1974, 29.3, 27.0, 18.3, 22.7),
    (1975, 27.5, 24.5, 17.6, 20.3),
    (1976, 28.0, 24.3, 19.4, 21.6),
    (1977, 27.4, 29.3, 20.7, 23.4),
    (1978, 29.7, 24.9, 21.8, 24.1),
    (1979, 33.0, 30.4, 23.5, 25.1),
    (1980, 35.4, 37.3, 25.9, 33.7),
    (1982, 33.8, 34.4, 28.7, 31.0),
)
"""What `BY_YEAR` returns."""

_REPORT: Final = """Question: how did the fuel economy of cars change between the model years 1970 \
and 1982, and where did the most economical ones come from?

## Findings

- The mean over all cars rose between the first and the last model year, in per cent: `{{result:4}}`
- The cars of the USA gained most, from the lowest start, in per cent: `{{result:5}}`
- Over all years, cars from Japan went furthest on a gallon, then those from Europe.

![Fuel economy by model year](/v1/artifacts/{{artifact:1}}/content)

## Fuel economy by origin, all years (query result as it came)

```json
{{result:2}}
```

## Mean miles per gallon by model year (query result as it came)

```json
{{result:3}}
```

## Source and limits

The data set `cars` of vega-datasets 0.9 (Donoho and Ramos, 1982): 406 cars, of which 8 have no
figure for fuel economy and are left out. No car in it has the model year 1981. It is a selection
of models, not weighted by sales."""


def script() -> list[dict[str, Any]]:
    """Return the declared answers; `delay_s` stands for a model that thinks."""
    return [
        {
            "text": "I look at the tables first.",
            "tools": [{"name": "sql_schema", "input": {"table": "cars"}}],
            "delay_s": 0.3,
        },
        {
            "text": "Fuel economy is in Miles_per_Gallon. I ask by origin and by model year.",
            "tools": [
                {"name": "sql_query", "input": {"sql": BY_ORIGIN}},
                {"name": "sql_query", "input": {"sql": BY_YEAR}},
            ],
            "delay_s": 0.4,
        },
        {
            "text": "How much is that in per cent, for all cars and for the USA?",
            "tools": [
                _change(_cell(0, "all_cars"), _cell(-1, "all_cars")),
                _change(_cell(0, "usa"), _cell(-1, "usa")),
            ],
            "delay_s": 0.3,
        },
        {
            "text": "I note the main finding for whoever reads the outbox.",
            "tools": [
                {
                    "name": "append_line",
                    "input": {
                        "file": NOTES,
                        "line": "cars 1970-1982, change of mean mpg in %: all {{result:4}} "
                        "USA {{result:5}}",
                    },
                }
            ],
            "delay_s": 0.3,
        },
        {
            "text": "A chart shows the model years side by side.",
            "tools": [
                {
                    "name": "chart",
                    "input": {
                        "kind": "line",
                        "columns": list(COLUMNS),
                        "rows": [list(row) for row in ROWS],
                        "x": "model_year",
                        "title": "Fuel economy by model year",
                        "x_label": "Model year",
                        "y_label": "Mean miles per gallon",
                    },
                }
            ],
            "delay_s": 2.0,  # long enough that the demo's kill -9 lands inside
        },
        {
            "text": "Now the report.",
            "tools": [
                {
                    "name": "write_report",
                    "input": {"title": "Fuel economy of cars, 1970 to 1982", "markdown": _REPORT},
                }
            ],
            "delay_s": 0.4,
        },
        {
            "stream": [
                "The mean rose from 17.7 to 31.0 miles per gallon. ",
                "Cars from Japan were the most economical over all years, ",
                "and those of the USA gained most. The report has the chart and the numbers.",
            ],
            "delay_s": 0.3,
        },
    ]


def agent(model: str = SCRIPTED) -> dict[str, Any]:
    """Return the body of `POST /v1/agents` for the agent with this model."""
    spec: dict[str, Any] = {
        "description": "Answers questions about data files with SQL, a chart and a report.",
        "model": model,
        "system": _SYSTEM,
        "tools": list(_TOOLS),
        "preset": "data",
        "max_output_tokens": 4096,
    }
    if model == SCRIPTED:
        spec["model_options"] = {"script": script()}
    return {"name": "analyst", "spec": spec}


def _cell(row: int, column: str) -> float:
    return ROWS[row][COLUMNS.index(column)]


def _change(first: float, last: float) -> dict[str, Any]:
    expression = f"round(({last} - {first}) / {first} * 100, 1)"
    return {"name": "calculate", "input": {"expression": expression}}


if __name__ == "__main__":
    print(json.dumps(agent(*sys.argv[1:2]), indent=2))
