"""(l) Streamed deltas: how many one process decodes and publishes in a second, beside the official
client that only decodes the same bytes.

The server (`delta_server.py`) writes prepared bytes, each delta by itself, as fast as the reader
takes them. The reader (`delta_reader.py`) is a process of its own. Whoever listens to Valkey must
have heard every character. The ways take turns; the median counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import redis

from benchmarks.delta_reader import PREFIX
from benchmarks.delta_server import text_of
from benchmarks.options import Options
from benchmarks.report import Measure, Outcome, median
from benchmarks.stack import ROOT, BenchFailed, Lab, Stack

TITLE: Final = "deltas decoded and published by one process"
_TARGET: Final = 20_000


@dataclass(frozen=True, slots=True)
class Way:
    """One way to read, and how much of it."""

    how: str
    streams: int
    published: bool = True


WAYS: Final = (
    Way("chat", 200),
    Way("responses", 200),
    Way("sdk-chat", 10, published=False),
    Way("sdk-responses", 10, published=False),
)


def run(stack: Stack, options: Options) -> Outcome:
    """Measure every way in turns."""
    deltas = 200 if options.quick else 1_000
    found: dict[str, list[dict[str, float]]] = {way.how: [] for way in WAYS}
    problems: list[str] = []
    with stack.lab("deltas") as lab:
        port = _start_server(lab, deltas)
        for turn in range(options.pairs):
            for way in WAYS:
                stack.say(f"turn {turn + 1}: {way.how}")
                one, wrong = _read(lab, way, port, deltas)
                found[way.how].append(one)
                problems += wrong
        paced = _paced(lab, 100 if options.quick else 300)
    rate = {how: median([one["per_s"] for one in all_]) for how, all_ in found.items()}
    per_cpu = {how: median([one["per_cpu_s"] for one in all_]) for how, all_ in found.items()}
    return Outcome(
        [
            *_ours("chat", rate, per_cpu),
            *_ours("responses", rate, per_cpu),
            *_compared("chat", found),
            *_compared("responses", found),
            Measure(
                "chat at 50 deltas/s a stream: CPU for 20,000 deltas/s",
                100 * _TARGET / paced["per_cpu_s"], "%", 100, "most",
                f"of one core; 500 streams, each delta read by itself: {paced['per_s']:,.0f}/s",
            ),
        ],
        {"deltas_per_stream": deltas, "turns": found, "paced": paced},
        problems,
    )  # fmt: skip


def _ours(how: str, rate: Mapping[str, float], per_cpu: Mapping[str, float]) -> Iterator[Measure]:
    yield Measure(f"{how}: decoded and published", rate[how], "deltas/s", _TARGET)
    yield Measure(
        f"{how}: the same in a second of CPU", per_cpu[how], "deltas", _TARGET,
        note="of the process that reads; far above the line before it, the machine was busy",
    )  # fmt: skip


def _compared(how: str, found: Mapping[str, list[dict[str, float]]]) -> Iterator[Measure]:
    """Compare by CPU, turn by turn, so that what else the machine does weighs on neither."""
    ratios = [
        ours["per_cpu_s"] / sdk["per_cpu_s"]
        for ours, sdk in zip(found[how], found[f"sdk-{how}"], strict=True)
    ]
    sdk = median([one["per_s"] for one in found[f"sdk-{how}"]])
    yield Measure(
        f"{how}: ratio to the official client", median(ratios), "times", 5,
        note=f"by CPU; it decodes {sdk:,.0f}/s and publishes nothing",
    )  # fmt: skip


def _start_server(lab: Lab, deltas: int, per_s: float = 0) -> int:
    name = f"server-{per_s:g}"
    args = ["--deltas", str(deltas), "--per-s", f"{per_s:g}"]
    server = lab.start(name, "benchmarks.delta_server", args)
    lab.wait_for("the model server", lambda: "port=" in server.log.read_text())
    return int(server.log.read_text().partition("port=")[2].split()[0])


def _paced(lab: Lab, deltas: int) -> dict[str, float]:
    """Read streams as models speak: every delta comes alone, which costs the most."""
    way = Way("chat", 500)
    one, wrong = _read(lab, way, _start_server(lab, deltas, 50), deltas)
    if wrong:
        raise BenchFailed(wrong[0])
    return one


def _read(lab: Lab, way: Way, port: int, deltas: int) -> tuple[dict[str, float], list[str]]:
    """Read once; returns what it took, and what was wrong."""
    url = lab.stack.redis_url()
    args = [
        "--how", way.how, "--port", str(port), "--redis", url, "--streams", str(way.streams),
        "--deltas", str(deltas),
    ]  # fmt: skip
    with _listening(url) as heard:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.delta_reader", *args],
            capture_output=True, cwd=ROOT, env=lab.environment(), timeout=300, check=False,
        )  # fmt: skip
    if done.returncode:
        raise BenchFailed(f"the reader failed: {done.stderr.decode()[-2000:]}")
    took = json.loads(done.stdout)
    problems: list[str] = []
    if took["wrong"]:
        problems.append(f"{way.how}: {took['wrong']} answers are not what was sent")
    wanted = len(text_of(deltas)) * (way.streams + 1) if way.published else 0
    if heard.chars != wanted or took.get("dropped"):
        problems.append(f"{way.how}: {heard.chars} of {wanted} characters were published")
    total = way.streams * deltas
    return {
        **took,
        "per_s": total / took["seconds"],
        "per_cpu_s": total / took["cpu_s"],
        "messages": heard.messages,
    }, problems


class _Heard:
    """What came through Valkey."""

    def __init__(self) -> None:
        self.chars = 0
        self.messages = 0
        self.raw: list[bytes] = []

    def count(self) -> None:
        """Add up, after the measurement."""
        self.messages = len(self.raw)
        for body in self.raw:
            event: Any = json.loads(body)
            self.chars += len(event["text"])


@contextmanager
def _listening(url: str) -> Iterator[_Heard]:
    heard, stop = _Heard(), threading.Event()
    with redis.Redis.from_url(url) as client, client.pubsub() as pubsub:
        pubsub.psubscribe(f"{PREFIX}:live:*")
        pubsub.get_message(timeout=5)

        def listen() -> None:
            while True:
                message = pubsub.get_message(timeout=0.2)
                if message is not None:
                    heard.raw.append(message["data"])
                elif stop.is_set():
                    return

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        try:
            yield heard
        finally:
            stop.set()
            thread.join()
            heard.count()
