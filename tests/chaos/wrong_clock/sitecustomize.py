"""Loaded by Python itself in the worker with the wrong clock, which has this folder in its
PYTHONPATH.

libfaketime 0.9.10 moves the absolute deadline that `time.sleep` gives to the kernel although it
leaves the monotonic clock alone, so that every sleep fails with EINVAL. Waiting for what never
comes does not.
"""

import threading
import time
from typing import SupportsIndex


def _sleep(seconds: float | SupportsIndex, /) -> None:
    threading.Event().wait(float(seconds))


time.sleep = _sleep
