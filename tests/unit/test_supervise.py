"""The supervisor and `harness dev` around it, with tiny children in place of the platform."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness_api.cli.dev import DevOptions, default_plan, read_dev_file
from harness_api.cli.process_log import ProcessLog, use_colour
from harness_api.cli.supervise import Outcome, ProcessSpec, Restart, Supervisor, run_to_end
from harness_common.crypto.keks import parse_keks
from harness_common.embedded.process import free_port

REPOSITORY = Path(__file__).parents[2]
SLEEPER = "import time\nprint('up', flush=True)\ntime.sleep(60)"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPER
SLOW_TO_DIE = (
    "import signal, time\n"
    "def slowly(*_):\n"
    "    signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3); raise SystemExit\n"
    "signal.signal(signal.SIGTERM, slowly)\n" + SLEEPER
)
QUICK = Restart(first_s=0.01, max_s=0.02, give_up_after=3)


def spec(name: str, code: str, **more: object) -> ProcessSpec:
    return ProcessSpec(name, (sys.executable, "-S", "-c", code), **more)  # type: ignore[arg-type]


class Group:
    """A supervisor with its console in memory."""

    def __init__(self, folder: Path, *specs: ProcessSpec) -> None:
        self.console = io.StringIO()
        self.pids: list[dict[str, int]] = []
        self.supervisor = Supervisor(
            specs,
            ProcessLog(folder, self.console),
            on_change=lambda pids: self.pids.append(dict(pids)),
        )
        self.supervisor.start()

    def run_until(self, condition: Callable[[], object]) -> None:
        outcome = self.supervisor.run(until=lambda: bool(condition()), timeout_s=15)
        assert outcome is Outcome.REACHED, self.console.getvalue()

    def said(self, text: str) -> bool:
        return text in self.console.getvalue()


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], object], timeout_s: float = 15) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_output_is_one_log_on_the_console_and_a_file_each(tmp_path: Path) -> None:
    group = Group(tmp_path, spec("a", SLEEPER), spec("longer", SLEEPER.replace("up", "hö")))
    group.run_until(lambda: group.said("longer    | hö") and group.said("a         | up"))
    group.supervisor.stop()
    first = group.console.getvalue().splitlines()[0]
    assert first[2] == first[5] == ":"
    assert first[8] == "."
    assert "\033" not in group.console.getvalue(), "no colours without a terminal"
    assert "hö" in (tmp_path / "longer.log").read_text()
    assert "hö" not in (tmp_path / "a.log").read_text()


def test_colours_are_for_terminals_that_want_them() -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    assert use_colour(terminal, {})
    assert not use_colour(terminal, {"NO_COLOR": "1"})
    assert not use_colour(io.StringIO(), {})


def test_a_console_that_goes_away_stops_nothing(tmp_path: Path) -> None:
    console = io.StringIO()
    log = ProcessLog(tmp_path, console)
    console.close()
    log.write("a", "still kept")
    assert "still kept" in (tmp_path / "a.log").read_text()


def test_stop_is_in_reverse_order_and_ends_the_stubborn(tmp_path: Path) -> None:
    group = Group(tmp_path, spec("first", SLEEPER), spec("second", STUBBORN, stop_grace_s=0.3))
    group.run_until(lambda: group.console.getvalue().count("| up") == 2)
    pids = list(group.supervisor.pids.values())
    group.supervisor.stop()
    text = group.console.getvalue()
    assert text.index("second was killed by SIGKILL") < text.index("first was killed by SIGTERM")
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert group.pids[-1] == {}


def test_hurry_cuts_the_grace_short(tmp_path: Path) -> None:
    group = Group(tmp_path, spec("stubborn", STUBBORN, stop_grace_s=60))
    group.run_until(lambda: group.said("| up"))
    group.supervisor.hurry()
    began = time.monotonic()
    group.supervisor.stop()
    assert time.monotonic() - began < 10


def test_a_crashed_child_is_reported_and_started_again(tmp_path: Path) -> None:
    group = Group(tmp_path, spec("worker", SLEEPER, restart=Restart(first_s=0.01)))
    group.run_until(lambda: group.said("| up"))
    before = group.supervisor.pids["worker"]
    os.kill(before, signal.SIGKILL)
    group.run_until(lambda: group.supervisor.pids.get("worker", before) != before)
    assert group.said("worker was killed by SIGKILL after")
    assert group.pids[-1] == group.supervisor.pids
    group.supervisor.stop()


def test_a_child_that_ends_at_once_again_and_again_gives_up_with_its_last_lines(
    tmp_path: Path,
) -> None:
    broken = "import sys\nprint('no such setting: X')\nsys.exit(3)"
    group = Group(tmp_path, spec("ok", SLEEPER), spec("broken", broken, restart=QUICK))
    assert group.supervisor.run(timeout_s=15) is Outcome.GAVE_UP
    assert group.said("broken exited with code 3")
    assert group.said("3 times in a row: giving up")
    assert group.said("dev       |     no such setting: X")
    group.supervisor.stop()


def test_an_optional_child_that_gives_up_leaves_the_others_running(tmp_path: Path) -> None:
    group = Group(
        tmp_path,
        spec("ok", SLEEPER),
        spec("flower", "raise SystemExit(1)", restart=QUICK, required=False),
    )
    group.run_until(lambda: group.said("giving up"))
    assert list(group.supervisor.pids) == ["ok"]
    group.supervisor.stop()


def test_a_program_that_does_not_exist_is_said_so(tmp_path: Path) -> None:
    group = Group(tmp_path, ProcessSpec("ghost", ("/nonexistent/program",)))
    assert group.supervisor.run(timeout_s=5) is Outcome.GAVE_UP
    assert group.said("ghost cannot be started")


def test_a_grandchild_that_keeps_the_pipe_does_not_hide_the_end(tmp_path: Path) -> None:
    code = "import os, time\nif os.fork() == 0:\n    time.sleep(3)\nelse:\n    os._exit(4)"
    code_seen, _ = run_to_end(spec("parent", code), ProcessLog(tmp_path, io.StringIO()))
    assert code_seen == 4


def test_backoff_grows_to_its_bound() -> None:
    policy = Restart(first_s=0.5, max_s=3)
    assert [policy.delay_s(n) for n in range(6)] == [0.5, 0.5, 1, 2, 3, 3]


# -- harness dev -----------------------------------------------------------------------------------

API = """
import os
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
HTTPServer(("127.0.0.1", int(os.environ["HARNESS_API__PORT"])), Handler).serve_forever()
"""
DEV = """
import sys
from pathlib import Path
from harness_api.cli.dev import DevOptions, Plan, run_dev
from harness_api.cli.supervise import ProcessSpec

def plan(options, data_dir, env):
    make = lambda name, code: ProcessSpec(name, (sys.executable, "-c", code), env=env)
    setup = [make("migrate", sys.argv[3])]
    return Plan(setup, [make("api", sys.argv[4]), make("worker", sys.argv[5])])

raise SystemExit(run_dev(
    DevOptions(data_dir=Path(sys.argv[1]), api_port=int(sys.argv[2]), flower_port=None,
               database_url="postgresql://elsewhere/db"),
    plan,
))
"""


class Dev:
    """`harness dev` as a process, over an embedded Valkey, a small API and a worker."""

    def __init__(
        self, data_dir: Path, port: int, setup: str = "print('migrated')", worker: str = SLEEPER
    ) -> None:
        self.data_dir = data_dir
        self.process = subprocess.Popen(
            [sys.executable, "-c", DEV, str(data_dir), str(port), setup, API, worker],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=REPOSITORY,
        )

    def wait_until_ready(self) -> dict[str, Any]:
        def ready() -> bool:
            assert self.process.poll() is None, self.process.communicate()[0]
            found = read_dev_file(self.data_dir) or {}
            return found.get("pid") == self.process.pid and bool(found["ready"])

        wait_until(ready)
        return read_dev_file(self.data_dir) or {}

    def finish(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=20)
        return self.process.returncode, output


def test_dev_starts_everything_refuses_a_second_start_and_stops_cleanly(tmp_path: Path) -> None:
    port = free_port()
    dev = Dev(tmp_path / "data", port)
    found = dev.wait_until_ready()
    assert (tmp_path / "data" / "dev.json").stat().st_mode & 0o077 == 0
    kek = tmp_path / "data" / "kek"
    assert kek.stat().st_mode & 0o077 == 0
    assert str(parse_keks(kek.read_text()).current).startswith("dev-")
    assert found["api_url"] == f"http://127.0.0.1:{port}"
    assert set(found["pids"]) == {"api", "worker", "valkey"}
    assert set(found["embedded_urls"]) == {"valkey"}, "a foreign URL is not written down"

    code, output = Dev(tmp_path / "data", port).finish()
    assert code == 1
    assert f"already running in {tmp_path / 'data'}: process {dev.process.pid} on http" in output

    os.kill(found["pids"]["valkey"], signal.SIGKILL)
    os.kill(found["pids"]["worker"], signal.SIGKILL)
    wait_until(lambda: both_replaced(dev, found))

    dev.process.send_signal(signal.SIGINT)
    code, output = dev.finish()
    assert code == 0, output
    for text in (
        "| migrated",
        "made the key",
        "Harness is running.",
        "Try",
        "worker was killed by SIGKILL",
    ):
        assert text in output
    assert "Traceback" not in output
    assert output.rstrip().endswith("| stopped")
    assert not (tmp_path / "data" / "dev.json").exists()
    assert not any(psutil.pid_exists(pid) for pid in found["pids"].values())


@pytest.fixture
def start_dev() -> Iterator[Callable[..., Dev]]:
    """Start `harness dev`; whatever a failing test leaves is killed."""
    started: list[Dev] = []

    def start(*args: Any, **more: Any) -> Dev:
        started.append(Dev(*args, **more))
        return started[-1]

    yield start
    for dev in started:
        dev.process.kill()
        dev.process.wait()


def both_replaced(dev: Dev, found: dict[str, Any]) -> bool:
    pids = (read_dev_file(dev.data_dir) or {})["pids"]
    return all(pids.get(k) not in {None, found["pids"][k]} for k in ("valkey", "worker"))


def test_dev_killed_with_kill_9_leaves_nothing_and_starts_again_at_once(
    tmp_path: Path, start_dev: Callable[..., Dev]
) -> None:
    port = free_port()
    first = start_dev(tmp_path, port, worker=SLOW_TO_DIE)
    pids = first.wait_until_ready()["pids"].values()
    first.process.kill()
    first.finish()
    second = start_dev(tmp_path, port)
    second.wait_until_ready()
    assert not any(is_alive(pid) for pid in pids), "the second start waits for what is left"
    second.process.terminate()
    assert second.finish()[0] == 0


def test_dev_names_the_port_its_holder_and_the_setting(
    tmp_path: Path, start_dev: Callable[..., Dev]
) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as other:
        port = other.getsockname()[1]
        code, output = start_dev(tmp_path, port).finish()
    assert code == 1
    assert f"Port {port} for the API is taken by process {os.getpid()}" in output
    assert "HARNESS_API__PORT" in output


def test_dev_stops_when_a_setup_step_fails_and_shows_why(
    tmp_path: Path, start_dev: Callable[..., Dev]
) -> None:
    code, output = start_dev(
        tmp_path, free_port(), setup="raise SystemExit('cannot migrate')"
    ).finish()
    assert code == 1
    assert "migrate failed with code 1. Its last lines:" in output
    assert "cannot migrate" in output
    assert "Traceback" not in output


def test_the_plan_of_the_platform(tmp_path: Path) -> None:
    plan = default_plan(DevOptions(), tmp_path, {"HARNESS_REDIS_URL": "redis://:secret@h/0"})
    assert [s.name for s in plan.setup] == ["migrate", "bootstrap"]
    assert [s.name for s in plan.processes] == ["api", "scheduler", "worker", "flower"]
    api, *others, flower = plan.processes
    assert not flower.required
    again = default_plan(DevOptions(), tmp_path, {}).processes[-1]
    for told in (api.env, flower.env, again.env):
        assert told["HARNESS_FLOWER_URL"] == "http://127.0.0.1:5555"
        assert told["HARNESS_FLOWER__HOST"] == "127.0.0.1"
        assert told["HARNESS_FLOWER__PASSWORD"] == (tmp_path / "flower.secret").read_text()
    assert not any("HARNESS_FLOWER__PASSWORD" in other.env for other in others)
    assert (tmp_path / "flower.secret").stat().st_mode & 0o077 == 0
    assert not any("secret" in word for s in plan.processes for word in s.argv)
    assert len(default_plan(DevOptions(flower_port=None), tmp_path, {}).processes) == 3
