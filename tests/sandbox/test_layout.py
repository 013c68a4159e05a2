"""What the command of a tier A cage says, without starting one."""

from __future__ import annotations

import pytest

from harness_worker.sandbox.layout import Profile, bwrap_argv, shown_in_cage


def binds(argv: list[str]) -> dict[str, str]:
    return {argv[i + 2]: argv[i + 1] for i, a in enumerate(argv) if a.startswith("--ro-bind")}


def test_an_installation_below_work_is_shown_beside_the_work_folder():
    """The work folder of a cage hides the machine's /work, and with it whatever is below."""
    profile = Profile(
        python="/work/here/.venv/bin/python",
        modules=(("tools", "/work/here/tools.py"), ("other", "/srv/other/__init__.py")),
        trees=("/work/here/.venv", "/work/here/tools.py", "/srv/other", "/tmp/more"),
    )
    argv = bwrap_argv("/usr/bin/bwrap", profile, 3, "{}")
    shown = binds(argv)
    assert shown["/host/work/here/.venv"] == "/work/here/.venv"
    assert shown["/host/work/here/tools.py"] == "/work/here/tools.py"
    assert shown["/srv/other"] == "/srv/other"
    assert shown["/host/tmp/more"] == "/tmp/more"
    command = argv[argv.index("--") + 1 :]
    assert command[0] == "/host/work/here/.venv/bin/python"
    assert '"tools": "/host/work/here/tools.py"' in command[4]
    assert '"other": "/srv/other/__init__.py"' in command[4]
    assert profile.argv("{}")[0] == profile.python, "tier B has no mounts"


@pytest.mark.parametrize(
    "path", ["/usr/bin/python3", "/workshop/python", "/srv/work/x", "/tmpfs/x"]
)
def test_other_paths_are_where_they_are(path):
    assert shown_in_cage(path) == path
