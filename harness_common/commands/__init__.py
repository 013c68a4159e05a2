"""What people ask for. Each command builds an input, applies it and says what must happen next.

Called by the API, by the scheduler (schedules) and by the tool that starts child runs. A command is
one transaction; doorbells and signals go out after it, and a lost one costs seconds, never a run.
"""

from harness_common.commands.accept import start_in
from harness_common.commands.approvals import Approver, Decide, decide_approval
from harness_common.commands.control import (
    Asked,
    answer_calls,
    answer_run,
    cancel_run,
    interrupt_run,
    pause_run,
    resume_run,
    steer_run,
)
from harness_common.commands.effects import resolve_effect
from harness_common.commands.fork import ForkRun, fork_child, fork_run, retry_run
from harness_common.commands.request import Parent, Started, StartRun
from harness_common.commands.session import CancelledRun, cancel_session
from harness_common.commands.start import start_run

__all__ = [
    "Approver",
    "Asked",
    "CancelledRun",
    "Decide",
    "ForkRun",
    "Parent",
    "StartRun",
    "Started",
    "answer_calls",
    "answer_run",
    "cancel_run",
    "cancel_session",
    "decide_approval",
    "fork_child",
    "fork_run",
    "interrupt_run",
    "pause_run",
    "resolve_effect",
    "resume_run",
    "retry_run",
    "start_in",
    "start_run",
    "steer_run",
]
