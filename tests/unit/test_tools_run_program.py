"""`run_program`: declared programs only, bounded in time and output, nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time

import pytest

from harness_common.contracts.tool import EffectClass
from harness_common.core.errors import (
    Denied,
    Invalid,
    NotFound,
    Permanent,
    Transient,
    UnknownOutcome,
)
from harness_common.settings import Settings, ToolSettings
from harness_worker.tools import run_program
from tests.fakes.tool_context import acall, call

PYTHON = [sys.executable, "-I", "-S", "-c"]
# Starts a child that ignores SIGTERM and holds no pipe, tells both pids, and sleeps.
FAMILY = """
import os, signal, sys, time
if sys.argv[2] == "ignore":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for fd in (0, 1, 2):
        os.close(fd)
    time.sleep(60)
    os._exit(0)
with open(sys.argv[1], "w") as f:
    f.write(f"{os.getpid()} {child}")
if sys.argv[2] != "leave":
    time.sleep(60)
"""


@pytest.fixture
def make(tmp_path):
    def make(**programs):
        file = tmp_path / "programs.json"
        file.write_text(json.dumps(programs))
        (built,) = run_program.build(Settings(tool=ToolSettings(programs=file)))
        return built

    return make


def python(code, **more):
    return {"argv": [*PYTHON, code], **more}


def has_ended(pid):
    """Wait for the end of a process that may be nobody's child; False when it outlives the wait."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], 10)[0])
    finally:
        os.close(fd)


def test_result(make):
    code = "import sys; print(sys.argv[1:], sys.stdin.read()); sys.stderr.write('e'); sys.exit(3)"
    tool = make(show=python(code))
    assert call(tool, program="show", args=["a b", "$HOME;*"], stdin="in") == {
        "program": "show",
        "exit_code": 3,
        "stdout": "['a b', '$HOME;*'] in\n",
        "stderr": "e",
        "truncated": False,
    }


def test_environment_and_folder_are_clean(make, monkeypatch):
    monkeypatch.setenv("HARNESS_SECRET", "canary")
    code = "import os, json; print(json.dumps([dict(os.environ), os.getcwd(), os.listdir('.')]))"
    out = call(make(show=python(code, env={"MINE": "1"})), program="show")
    env, cwd, files = json.loads(out["stdout"])
    assert set(env) - {"LC_CTYPE"} == {"PATH", "LANG", "HOME", "TMPDIR", "MINE"}
    assert env["HOME"] == cwd
    assert files == []
    assert not os.path.exists(cwd)


def test_output_is_capped_and_the_program_goes_on(make):
    code = "import sys; sys.stdout.write('x' * 5_000_000); sys.stderr.write('done')"
    out = call(make(loud=python(code, max_output_bytes=1_000)), program="loud")
    assert (len(out["stdout"]), out["stderr"], out["exit_code"]) == (1_000, "done", 0)
    assert out["truncated"]


def test_stdin_that_nobody_reads(make):
    out = call(make(deaf=python("pass")), program="deaf", stdin="x" * 1_000_000)
    assert out["exit_code"] == 0


@pytest.mark.parametrize("manner", ["polite", "ignore"])
def test_timeout_ends_the_whole_group(make, tmp_path, monkeypatch, manner):
    monkeypatch.setattr(run_program, "_TERM_GRACE_S", 0.2)
    tool = make(family=python(FAMILY, timeout_s=1.5))
    pids = tmp_path / "pids"
    with pytest.raises(UnknownOutcome):
        call(tool, program="family", args=[str(pids), manner])
    assert all(has_ended(int(pid)) for pid in pids.read_text().split())


@pytest.mark.parametrize(
    ("effect", "branch"),
    [("write", UnknownOutcome), ("idempotent", Transient), ("read", Transient)],
)
def test_a_timeout_is_unknown_for_a_write_and_may_be_repeated_otherwise(make, effect, branch):
    tool = make(slow=python("import time; time.sleep(60)", timeout_s=0.05, effect=effect))
    with pytest.raises(branch, match=r"after 0\.05 s") as caught:
        call(tool, program="slow")
    assert caught.value.error_code == "TIMEOUT"


def test_cancelling_ends_the_whole_group(make, tmp_path, monkeypatch):
    monkeypatch.setattr(run_program, "_TERM_GRACE_S", 0.2)
    tool = make(family=python(FAMILY))
    pids = tmp_path / "pids"
    os.mkfifo(pids)

    async def scenario():
        running = asyncio.ensure_future(acall(tool, program="family", args=[str(pids), "ignore"]))
        # Opening a FIFO waits until the program writes to it.
        parent, child = (await asyncio.to_thread(pids.read_text)).split()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert has_ended(int(parent))
        assert has_ended(int(child))

    asyncio.run(scenario())


# Makes a call in a process of its own, as a worker does.
WORKER = """
import asyncio, sys
from harness_common.settings import Settings, ToolSettings
from harness_worker.tools import run_program
from tests.fakes.tool_context import acall
(tool,) = run_program.build(Settings(tool=ToolSettings(programs=sys.argv[1])))
asyncio.run(acall(tool, program="stays", args=[sys.argv[2]]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_a_killed_worker_takes_its_program_along(tmp_path):
    code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
    programs, told = tmp_path / "programs.json", tmp_path / "pid"
    programs.write_text(json.dumps({"stays": python(code)}))
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(programs), str(told)])
    until = time.monotonic() + 20
    while not (told.exists() and told.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    program = int(told.read_text())
    worker.kill()
    worker.wait()
    assert has_ended(program)


def test_a_child_left_behind_is_ended(make, tmp_path):
    pids = tmp_path / "pids"
    out = call(make(family=python(FAMILY)), program="family", args=[str(pids), "leave"])
    assert out["exit_code"] == 0
    assert has_ended(int(pids.read_text().split()[1]))


def test_a_child_that_holds_the_pipe_does_not_hold_the_call(make):
    code = "import os, time\nif os.fork() == 0: time.sleep(60)\nelse: print('parent', flush=True)"
    started = time.monotonic()
    out = call(make(holds=python(code)), program="holds")
    assert out["stdout"] == "parent\n"
    assert time.monotonic() - started < 10


def test_a_signal_is_a_negative_exit_code(make):
    out = call(make(dies=python("import os; os.kill(os.getpid(), 9)")), program="dies")
    assert out["exit_code"] == -signal.SIGKILL


def test_what_is_not_declared_does_not_run(make):
    with pytest.raises(NotFound, match="Declared: a") as caught:
        call(make(a=python("pass")), program="/bin/sh")
    assert caught.value.error_code == "PROGRAM_NOT_FOUND"
    (none,) = run_program.build(Settings())
    with pytest.raises(Denied, match="HARNESS_TOOL__PROGRAMS"):
        call(none, program="a")
    assert none.spec.effect is EffectClass.WRITE


@pytest.mark.parametrize("args", [["a\0b"], ["\ud800"], ["x"] * 65, ["x" * 10_000], [1]])
def test_bad_arguments_start_nothing(make, args):
    with pytest.raises(Invalid):
        call(make(a=python("pass")), program="a", args=args)


def test_a_program_that_cannot_start(make):
    with pytest.raises(Permanent) as caught:
        call(make(gone={"argv": ["/no/such/program"]}), program="gone")
    assert caught.value.error_code == "EXECUTION_ERROR"


def test_the_tool_has_the_strongest_effect_and_describes_the_programs(make):
    read = python("pass", effect="read", description="Counts words.")
    assert make(a=read).spec.effect is EffectClass.READ
    assert make(a=read, b=python("pass", effect="idempotent")).spec.effect is EffectClass.IDEMPOTENT
    tool = make(a=read, b=python("pass"), c=python("pass", timeout_s=100))
    assert tool.spec.effect is EffectClass.WRITE
    assert "- a: Counts words." in tool.spec.description
    assert tool.spec.timeout_s > 100


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "JSON"),
        ("[]", "object"),
        ('{"a": {}}', "a.argv"),
        ('{"a": {"argv": []}}', "a.argv"),
        ('{"a": {"argv": ["x"], "shell": true}}', "a.shell"),
        ('{"a": {"argv": ["x"], "effect": "none"}}', "a.effect"),
        ('{"a b": {"argv": ["x"]}}', "a b"),
    ],
)
def test_a_wrong_file_stops_the_worker(tmp_path, text, words):
    file = tmp_path / "programs.json"
    file.write_text(text)
    with pytest.raises(Invalid) as caught:
        run_program.build(Settings(tool=ToolSettings(programs=file)))
    assert caught.value.error_code == "PROGRAMS_INVALID"
    assert words in caught.value.message
    with pytest.raises(Invalid, match="No such file"):
        run_program.build(Settings(tool=ToolSettings(programs=tmp_path / "none.json")))
