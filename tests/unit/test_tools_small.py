"""The small built-in tools: calculate, wait, write_report, artifact_read and chart."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from harness_common.contracts.tool import WaitUntil
from harness_common.core.errors import Invalid, NotFound, Permanent
from harness_common.settings import Settings
from harness_worker.tools import artifact_read, calculate, chart, wait, write_report
from harness_worker.tools.calculate import evaluate
from tests.fakes.tool_context import NOW, FakeContext, call


def built(module):
    (tool,) = module.build(Settings())
    return tool


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1200 - 950) / 950 * 100", 26.3157894736842),
        ("0.1 + 0.2", 0.3),
        ("7 // 2", 3),
        ("-7 % 3", 2),
        ("2 ** 100", 2**100),
        ("2 ** -1", 0.5),
        ("2 ** 0.5", 1.4142135623731),
        ("10 / 4", 2.5),
        ("sqrt(16) + abs(-3)", 7.0),
        ("round(2.567, 2)", 2.57),
        ("round(1234, -2)", 1200),
        ("max(1, 2, 3) - min(4, 5)", -1),
        ("sum(1, 2, 3)", 6),
        ("log10(1000)", 3.0),
        ("sin(pi / 2)", 1.0),
        (" 1_000 * 2 ", 2000),
        ("1 ** 99999999999999999999", 1),
    ],
)
def test_calculate(expression, value):
    assert evaluate(expression) == pytest.approx(value, rel=1e-13)
    assert type(evaluate(expression)) is type(value)


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "",
            "1 +",
            "1; 2",
            "x",
            "a = 1",
            "1 < 2",
            "'a' * 3",
            "[1] * 3",
            "True",
            "1j",
            "lambda: 1",
        ),
        *("__import__('os').system('id')", "().__class__", "pi.real", "(1).bit_length()"),
        *("open('/etc/passwd')", "eval('1')", "getattr(1, 'real')", "round.__self__", "f'{1}'"),
        *("9**9**9", "9**9**9**9", "2**4097", "10**-9**9", "(2**4000)*(2**4000)", "1e308 * 10"),
        *(
            "round(1, -999999999)",
            "round(1.5, 2**4000)",
            "exp(1000)",
            "exp(2**2000)",
            "(-8) ** 0.5",
        ),
        *("1 / 0", "1 % 0", "0 ** -1", "sqrt(-1)", "log(0)", "acos(2)", "max()", "abs(1, 2)"),
        *("abs(x=1)", "max(*[1])", "1 if 1 else 2", "(" * 400 + "1" + ")" * 99, "-" * 499 + "1)"),
        *(
            "1" * 501,
            "(y := 1)",
            "sum(i for i in [1])",
            "1 @ 2",
            "1 << 9999999999",
            "~1",
            "\0",
            "\uff11a",
        ),
    ],
)
def test_calculate_refuses(expression):
    with pytest.raises(Invalid) as caught:
        evaluate(expression)
    assert caught.value.error_code == "CALCULATION_ERROR"
    assert "'calculate'" in caught.value.message


def test_calculate_tool():
    assert call(built(calculate), expression="2*3") == {"expression": "2*3", "value": 6}


def test_wait_lets_go_and_comes_back():
    tool = built(wait)
    assert call(tool, seconds=90) == WaitUntil(NOW + timedelta(seconds=90))
    assert call(tool, until="2024-06-01T10:00:00+02:00") == WaitUntil(NOW + timedelta(days=1))
    resumed = FakeContext(resumed=NOW + timedelta(seconds=90), now=NOW + timedelta(seconds=95))
    assert call(tool, resumed, seconds=90) == "Waited until 2024-05-31T08:01:30Z."
    assert "already passed" in call(tool, until="2024-05-30T08:00:00Z")
    assert "already passed" in call(tool, seconds=0)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"seconds": 1, "until": "2024-06-01T08:00:00Z"},
        {"seconds": -1},
        {"seconds": 32 * 86_400},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"until": "2024-06-01T08:00:00"},
        {"until": "2024-07-02T08:00:00Z"},
        {"until": "9999-12-31T23:59:59Z"},
        {"until": "tomorrow"},
    ],
)
def test_wait_refuses(arguments):
    with pytest.raises(Invalid) as caught:
        call(built(wait), **arguments)
    assert caught.value.error_code == "ARGUMENTS_INVALID"
    assert "'wait'" in caught.value.message


def test_write_report():
    out = call(built(write_report), title="Sales  2024: up\n20%", markdown="\nBody\n\n")
    (artifact,) = out.artifacts
    assert out.content == {"name": "sales-2024-up-20.md", "size_bytes": len(artifact.data)}
    assert artifact.media_type == "text/markdown"
    assert artifact.data.decode() == "# Sales 2024: up 20%\n\nBody\n"


@pytest.mark.parametrize(
    ("title", "name"),
    [("../../etc/passwd", "etc-passwd.md"), ("销售 报告", "销售-报告.md"), ("***", "report.md")],
)
def test_write_report_names_are_safe(title, name):
    assert call(built(write_report), title=title, markdown="x").content["name"] == name


@pytest.mark.parametrize("markdown", ["", "x" * (1 << 20), "\ud800"])
def test_write_report_refuses(markdown):
    with pytest.raises(Invalid):
        call(built(write_report), title="t", markdown=markdown)


def test_artifact_read_pages_without_cutting_characters():
    words = "äöü" * 10
    ctx = FakeContext(artifacts={"art_1": words.encode(), "art_2": b"\0\1", "art_3": b""})
    tool = built(artifact_read)
    text = ""
    offset: int | None = 0
    while offset is not None:
        out = call(tool, ctx, artifact_id="art_1", offset=offset, max_bytes=7)
        text += out["text"]
        offset = out.get("next_offset")
    assert text == words
    assert call(tool, ctx, artifact_id="art_3")["text"] == ""
    with pytest.raises(Permanent) as caught:
        call(tool, ctx, artifact_id="art_2")
    assert caught.value.error_code == "NOT_TEXT"
    with pytest.raises(Invalid, match="60 bytes"):
        call(tool, ctx, artifact_id="art_1", offset=60)
    with pytest.raises(NotFound):
        call(tool, ctx, artifact_id="art_9")
    for bad in ("../x", "run_1", "art_", "art_1/../2"):
        with pytest.raises(Invalid):
            call(tool, ctx, artifact_id=bad)
    assert tool.spec.untrusted_output


ROWS = {
    "columns": ["month", "sales", "cost"],
    "rows": [["Jan", 3, 1.5], ["Feb", None, 2], ["Mar", 5, 2]],
}


@pytest.mark.filterwarnings("ignore:Glyph")  # where no Chinese font is installed
@pytest.mark.parametrize("kind", ["bar", "line", "scatter", "hist"])
def test_chart_draws_a_png(kind):
    out = call(built(chart), kind=kind, title="Sales $x_1$ \\bad 销售", **ROWS)
    (artifact,) = out.artifacts
    assert artifact.data.startswith(b"\x89PNG\r\n")
    assert artifact.media_type == "image/png"
    assert artifact.name.endswith(".png")
    assert out.content["y"] == ["sales", "cost"]
    assert out.content["x"] == (None if kind == "hist" else "month")
    assert out.content["points"] == 3


def test_chart_takes_columns_and_numeric_x():
    data = {"t": list(range(100)), "_v": [i * i for i in range(100)], "$a$": [1] * 100}
    out = call(built(chart), kind="line", data=data, x="t", y=["_v", "$a$"])
    assert out.content == {
        "name": "line.png",
        "kind": "line",
        "x": "t",
        "y": ["_v", "$a$"],
        "points": 100,
    }


@pytest.mark.parametrize(
    "arguments",
    [
        {"kind": "pie", **ROWS},
        {"kind": "bar"},
        {"kind": "bar", **ROWS, "data": {"a": [1]}},
        {"kind": "bar", "rows": [[1, 2]]},
        {"kind": "bar", "rows": [[1, 2], [1]], "columns": ["a", "b"]},
        {"kind": "bar", "rows": [], "columns": ["a", "b"]},
        {"kind": "bar", "rows": [[1, 2]], "columns": ["a", "a"]},
        {"kind": "bar", "data": {"a": [1, 2], "b": [1]}},
        {"kind": "bar", "data": {}},
        {"kind": "bar", "data": {"a": ["x"], "b": ["y"]}},
        {"kind": "bar", "data": {"a": ["x"], "b": ["y"]}, "y": ["b"]},
        {"kind": "bar", "data": {"a": ["x"], "b": [1]}, "x": "c"},
        {"kind": "bar", "data": {"a": ["x"], "b": [1]}, "y": ["c"]},
        {"kind": "bar", "data": {"a": list(range(501)), "b": list(range(501))}},
        {"kind": "line", "data": {"a": [0] * 10_001, "b": [0] * 10_001}},
        {"kind": "line", "data": {"a": [1], "b": [1e308]}},
        {"kind": "line", "data": {"a": [1], "b": [10**400]}},
        {"kind": "hist", "data": {"a": [None, None]}, "y": ["a"]},
        {"kind": "line", "data": {f"c{i}": [1] for i in range(14)}},
    ],
)
def test_chart_refuses(arguments):
    with pytest.raises(Invalid) as caught:
        call(built(chart), **arguments)
    assert caught.value.error_code == "ARGUMENTS_INVALID"
    assert "'chart'" in caught.value.message


def test_charts_in_threads_at_the_same_time_are_what_they_are_alone():
    tool = built(chart)
    alone = [tool.fn(FakeContext(), kind=k, **ROWS).artifacts[0].data for k in ("bar", "line")]
    start = threading.Barrier(4)

    def draw(kind):
        start.wait()
        return tool.fn(FakeContext(), kind=kind, **ROWS).artifacts[0].data

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(draw, ["bar", "line", "bar", "line"]))
    assert together == alone * 2


def test_the_registry_starts_without_matplotlib():
    code = (
        "import sys; from harness_common.settings import Settings;"
        "from harness_worker.tools.registry import ToolRegistry;"
        "ToolRegistry.from_settings(Settings());"
        "assert 'matplotlib' not in sys.modules and 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
