"""Log lines: one form for ours and for libraries, with the ids of the run that is worked on."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import logging, sys
from uuid import UUID, uuid4
import structlog
from harness_common.redaction import redactor
from harness_common.settings import LogSettings
from harness_common.telemetry.ids import ABOUT, About
from harness_common.telemetry.logs import configure_logging

configure_logging(LogSettings(format=sys.argv[1]))
redactor.add(uuid4(), "s3cr3t-canary-0815")
log = structlog.get_logger()
log.info("before.all")
ABOUT.set(About(UUID(int=1), UUID(int=2), UUID(int=3), 4, 5, 6, "ab" * 16))
log.info("step.done")
log.info("other.run", run_id="run_x", step=9)
logging.getLogger("celery.worker").warning("lost %s s3cr3t-canary-0815", "broker")
logging.getLogger("celery.worker").info("too quiet")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("lib").exception("failed")
"""


def lines(form: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, form], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_json_lines_are_json_whoever_speaks():
    first, step, other, library, failed = [json.loads(line) for line in lines("json")]
    assert "run_id" not in first
    ids = {"tenant_id", "session_id", "run_id", "step", "attempt", "fence"}
    assert ids <= step.keys()
    assert step["run_id"] == "run_" + "0" * 31 + "3"
    assert (step["step"], step["attempt"], step["fence"]) == (4, 5, 6)
    assert (other["run_id"], other["step"]) == ("run_x", 9)
    assert "fence" not in other  # it is another run's
    assert library["event"] == "lost broker [redacted]"
    assert (library["logger"], library["level"]) == ("celery.worker", "warning")
    assert library["run_id"] == step["run_id"]
    assert "ZeroDivisionError" in failed["exception"]
    assert {"at", "level", "event"} <= set(first) & set(library) & set(failed)


def test_pretty_lines_have_one_form_too():
    found = lines("pretty")
    assert all("s3cr3t-canary" not in line for line in found)
    mine = next(line for line in found if "step.done" in line)
    theirs = next(line for line in found if "lost broker" in line)
    assert mine.split()[0][:4] == theirs.split()[0][:4]  # both begin with the time
    assert "run_id=run_" in mine
    assert "[celery.worker]" in theirs
