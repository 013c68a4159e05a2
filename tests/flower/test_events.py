"""Task events are sent in groups, which is what makes them cheap enough to stay on."""

from __future__ import annotations

import os
import subprocess
import sys

# Celery groups the events of tasks in a worker that has a hub, and in no other.
_CHECK = """
from harness_common.settings import settings
from harness_worker.child import make_worker

print("hub:", make_worker(settings()).consumer.hub is not None)
"""


def test_a_worker_sends_the_events_of_tasks_in_groups() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CHECK],
        env={**os.environ, "HARNESS_REDIS_URL": "redis://127.0.0.1:1/0"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1].startswith("hub: True")
