"""What people ask for. Each command builds an input, applies it and says what must happen next.

Called by the API, by the scheduler (schedules) and by the tool that starts child runs. A command is
one transaction; doorbells and signals go out after it, and a lost one costs seconds, never a run.
"""

from harness_common.commands.control import (
    Asked,
    answer_run,
    cancel_run,
    pause_run,
    resume_run,
    steer_run,
)
from harness_common.commands.fork import ForkRun, fork_run, retry_run
from harness_common.commands.start import Parent, Started, StartRun, start_in, start_run

__all__ = [
    "Asked",
    "ForkRun",
    "Parent",
    "StartRun",
    "Started",
    "answer_run",
    "cancel_run",
    "fork_run",
    "pause_run",
    "resume_run",
    "retry_run",
    "start_in",
    "start_run",
    "steer_run",
]
