"""The scheduler's own process with a stopwatch around each round of admission.

Started by `queue_million` in place of `python -m harness_worker.scheduler`; writes the times, one a
line (`when took_ms admitted`), to the file that BENCH_ROUNDS names.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from harness_worker.scheduler import __main__ as process
from harness_worker.scheduler.admit import AdmitLoop
from harness_worker.scheduler.looper import Look

_run_once = AdmitLoop.run_once
_out = Path(os.environ["BENCH_ROUNDS"]).open("a", buffering=1)  # noqa: SIM115 - till the end


async def _timed(self: AdmitLoop, look: Look) -> int:
    begun = time.perf_counter()
    done = await _run_once(self, look)
    if look.queued:
        _out.write(f"{time.time():.3f} {(time.perf_counter() - begun) * 1000:.3f} {done}\n")
    return done


AdmitLoop.run_once = _timed  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(process.main())
