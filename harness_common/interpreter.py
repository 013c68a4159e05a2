"""How the interpreter of a long-lived process is set, once all that it needs is loaded."""

from __future__ import annotations

import gc
import sys
from typing import Final

_SWITCH_S: Final = 0.001
_YOUNG: Final = 2_000


def tune() -> None:
    """Keep pauses short: collections look only at what was made since, and a thread that has much
    to do holds up the loop for a millisecond, not for five.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 10, 10)
