"""The arithmetic of the benchmarks: what is judged, counted and written. Nothing is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import run
from benchmarks.meter import Reading
from benchmarks.proxy import Frames
from benchmarks.report import Measure, Outcome, median, number, percentile, table, to_json, write


def test_percentiles_lie_between_neighbours():
    assert percentile([4, 1, 3, 2], 50) == 2.5
    assert percentile([1, 2, 3, 4, 5], 99) == pytest.approx(4.96)
    assert percentile([7], 99) == 7
    assert median([3, 1, 2]) == 2


@pytest.mark.parametrize(
    ("value", "target", "at", "ok"),
    [
        (1.0, 1.0, "least", True),
        (0.99, 1.0, "least", False),
        (15, 15, "most", True),
        (15.1, 15, "most", False),
        (3, None, "least", None),
    ],
)
def test_a_target_is_the_least_or_the_most(value, target, at, ok):
    assert Measure("m", value, "", target, at).ok is ok


def test_numbers_keep_the_digits_that_matter():
    assert [number(n) for n in (6000, 1234.5, 42.35, 1.143, 0.0299)] == [
        "6,000", "1,234", "42.4", "1.14", "0.0299",
    ]  # fmt: skip


def section(key: str, *measures: Measure, problems: tuple[str, ...] = ()):
    return to_json(key, "Title", Outcome(measures, {}, problems), {"date": "d", "git": {}})


def test_the_table_says_which_targets_hold():
    fast, slow = Measure("fast", 2, "x", 1), Measure("slow", 20, "ms", 15, "most")
    text = table({"a": section("a", fast, slow, Measure("info", 3, "s"))})
    lines = text.splitlines()
    assert "yes" in next(line for line in lines if "fast" in line)
    assert "NO" in next(line for line in lines if "slow" in line)
    assert lines[-1] == "1 of 2 targets hold"


def test_a_failed_check_is_shown():
    failed = section("c", problems=("runs: 1 instead of 2",))
    assert "CHECK FAILED: runs: 1 instead of 2" in table(
        {"a": section("a", Measure("m", 1, "")), "c": failed}
    )
    assert "CHECK FAILED" in table({"c": failed})


def test_results_of_other_benchmarks_are_kept(tmp_path: Path):
    path = tmp_path / "results" / "latest.json"
    write(path, {"b": section("b", Measure("old", 1, ""))})
    write(path, {"a": section("a", Measure("new", 2, "", 1))})
    stored = json.loads(path.read_text())["benchmarks"]
    assert list(stored) == ["a", "b"]
    assert stored["a"]["measures"][0]["ok"] is True
    assert list(path.parent.iterdir()) == [path]


def test_idle_work_is_taken_off():
    load = Reading(30, {"transactions": 130.0}) - Reading(10, {"transactions": 10.0})
    idle = Reading(10, {"transactions": 30.0})
    assert load.net_of(idle) == {"transactions": 60.0}
    assert idle.per_s() == {"transactions": 3.0}


def frame(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 1000])
def test_round_trips_are_counted_however_the_stream_is_cut(cut):
    stream = (
        frame(b"R", b"\0\0\0\0") + frame(b"Z", b"I") + frame(b"D", b"Z\0\0\0\5Z") + frame(b"C", b"")
        + frame(b"Z", b"T")
    )  # fmt: skip
    frames = Frames()
    assert sum(frames.feed(stream[i : i + cut]) for i in range(0, len(stream), cut)) == 2
    assert frames.ready == 2


def test_the_command_line_names_what_there_is():
    assert run.parse([]).only == list("abcdefghijklmno")
    assert run.parse(["--only", "d, a"]).only == ["d", "a"]
    for wrong in (["--only", "x"], ["--only", ""], ["--pairs", "0"]):
        with pytest.raises(SystemExit):
            run.parse(wrong)
