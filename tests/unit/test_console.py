"""The console's parts that need no server: the Gantt's scale, differences of state, how values are
written.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from harness_api.console.charts import throughput
from harness_api.console.render import ago, compact, money, ms, number, short, span
from harness_api.console.state_diff import MOST, changes
from harness_api.console.timeline import Scale

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_time_in_which_nothing_is_done_is_drawn_short():
    scale = Scale([(at(0), at(10)), (at(3610), at(3620))])
    assert scale.place(at(0)) == 0
    assert scale.place(at(3620)) == pytest.approx(100)
    first, second = scale.bar(at(0), at(10)), scale.bar(at(3610), at(3620))
    assert first is not None
    assert second is not None
    assert first.width == second.width > 45  # an hour between them takes little
    ((place, idle_s),) = scale.gaps
    assert idle_s == 3600
    assert place == pytest.approx(50)


def test_bars_keep_their_order_and_stay_inside():
    scale = Scale([(at(0), at(1)), (at(0.5), at(2)), (at(2), at(2))])
    assert scale.gaps == []
    places = [scale.place(at(s)) for s in (-5, 0, 0.5, 1, 2, 9)]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0, 100)
    last = scale.bar(at(2), at(2))
    assert last is not None
    assert last.x + last.width <= 100.01
    assert scale.bar(None, at(1)) is None


def test_nothing_at_all_has_a_scale():
    assert Scale([]).place(at(0)) == 100


def test_changes_are_told_path_by_path():
    before = {"a": 1, "b": {"c": [1, 2], "d": None}, "gone": 1}
    after = {"a": 2, "b": {"c": [1, 3, 4], "d": None}, "new": {}}
    assert [(c.path, c.kind, c.before, c.after) for c in changes(before, after)] == [
        ("a", "changed", 1, 2),
        ("b.c[1]", "changed", 2, 3),
        ("b.c[2]", "added", None, 4),
        ("gone", "removed", 1, None),
        ("new", "added", None, {}),
    ]
    assert changes(before, before) == []
    assert len(changes({}, {str(i): i for i in range(MOST + 9)})) == MOST


def test_a_chart_says_what_it_draws():
    rows = [
        {"slice": 0, "status": "succeeded", "runs": 3},
        {"slice": 11, "status": "failed", "runs": 1},
        {"slice": 12, "status": "failed", "runs": 1},
    ]
    chart = throughput(rows, START, timedelta(hours=1), 12)
    assert chart.said == (
        "Runs that ended in the last 60 minutes: 3 succeeded, 2 failed, 0 cancelled."
    )
    assert chart.most == 3
    assert [b.height for b in chart.stacks[0].blocks] == [64]
    assert chart.stacks[11].counts["failed"] == 2
    empty = throughput([], START, timedelta(hours=1), 12)
    assert all(not stack.blocks for stack in empty.stacks)


def test_values_are_written_for_people():
    assert [span(s) for s in (None, 0.25, 5, 90, 7200, 90_061)] == [
        "-", "250 ms", "5.0 s", "1 min 30 s", "2 h", "1 d 1 h",
    ]  # fmt: skip
    assert ms(1500) == "1.5 s"
    assert [money(v) for v in (None, 0, 0.00123, 1234.5)] == ["-", "$0", "$0.0012", "$1,234.50"]
    assert [number(v) for v in (None, 1234567, 0.5)] == ["-", "1,234,567", "0.50"]
    assert short("a\n b\t" + "c" * 200, 10) == "a b ccccc…"
    assert compact({"ä": "\x1b"}) == '{"ä": "\\u001b"}'
    assert ago(datetime.now(UTC) - timedelta(minutes=3, seconds=2)) == "3 min ago"
    assert ago(datetime.now(UTC) + timedelta(hours=2, seconds=2)) == "in 2 h"
    assert ago("no time") == "-"
