"""`python -m harness_worker.sandbox`: say as JSON what this machine's sandbox really holds.

For `harness doctor`, which starts it as a process of its own. Always tries, whatever is cached.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict

from harness_common.contracts.sandbox import SandboxTier, TierReport
from harness_common.core.errors import HarnessError
from harness_common.settings import LogSettings, settings
from harness_common.telemetry.logs import configure_logging
from harness_worker.sandbox.service import WorkerSandbox


async def _report() -> TierReport:
    sandbox = WorkerSandbox(settings().sandbox)
    try:
        return await sandbox.report()
    except HarnessError as error:
        return TierReport(SandboxTier.NONE, dict.fromkeys(("A", "B"), error.message))
    finally:
        await sandbox.stop()


def main() -> None:
    """Try, and print."""
    configure_logging(LogSettings(level="error"))
    sys.stdout.write(json.dumps(asdict(asyncio.run(_report()))) + "\n")


if __name__ == "__main__":
    main()
