"""`file_read`, `file_list`, `append_line`: what they do, and that nothing leads out of the root."""

from __future__ import annotations

import os
import threading

import pytest

from harness_common.core.errors import Denied, HarnessError, Invalid, NotFound, Permanent
from harness_common.settings import Settings, ToolSettings
from harness_worker.tools import append_line, file_list, file_read
from harness_worker.tools.paths import open_file
from tests.fakes.tool_context import call


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root"
    (folder / "docs").mkdir(parents=True)
    (folder / "README.md").write_text("".join(f"line {i}\n" for i in range(1, 101)))
    (folder / "docs" / "a.txt").write_text("hällo wörld")
    (folder / "binary").write_bytes(b"a\0b")
    (folder / "empty").touch()
    (folder / "inside").symlink_to("docs/a.txt")
    (folder / "inside_dir").symlink_to("docs")
    (tmp_path / "secret.txt").write_text("canary")
    (folder / "out").symlink_to(tmp_path / "secret.txt")
    (folder / "out_relative").symlink_to("../secret.txt")
    (folder / "out_dir").symlink_to(tmp_path)
    (folder / "chain").symlink_to("out")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    return folder


def tools(root, module):
    (built,) = module.build(Settings(tool=ToolSettings(file_root=root)))
    return built


def read(root, path, **arguments):
    return call(tools(root, file_read), path=path, **arguments)


def listed(root, path="", **arguments):
    return call(tools(root, file_list), path=path, **arguments)


def test_whole_file_and_links_that_stay_inside(root):
    text = "hällo wörld"
    out = read(root, "docs/a.txt")
    assert out == {
        "path": "docs/a.txt",
        "size_bytes": 13,
        "offset": 0,
        "text": text,
        "truncated": False,
    }
    assert read(root, "inside")["text"] == text
    assert read(root, "inside_dir/a.txt")["text"] == text
    assert read(root, "./docs//a.txt")["text"] == text
    assert read(root, "empty")["text"] == ""


def test_lines(root):
    out = read(root, "README.md", start_line=99)
    assert (out["text"], out["end_line"], out["truncated"]) == ("line 99\nline 100\n", 100, False)
    assert read(root, "README.md", start_line=2, end_line=3)["text"] == "line 2\nline 3\n"
    out = read(root, "README.md", start_line=2, max_bytes=10)
    assert (out["text"], out["next_line"], out["truncated"]) == ("line 2\n", 3, True)
    with pytest.raises(Invalid, match="100 lines"):
        read(root, "README.md", start_line=101)
    with pytest.raises(Invalid, match="before"):
        read(root, "README.md", start_line=5, end_line=4)
    with pytest.raises(Invalid, match="not both"):
        read(root, "README.md", start_line=5, offset=4)


def test_all_lines_can_be_paged_through(root):
    text, line = "", 1
    while line:
        out = read(root, "README.md", start_line=line, max_bytes=25)
        text += out["text"]
        line = out.get("next_line")
    assert text == (root / "README.md").read_text()


@pytest.mark.parametrize("step", [2, 3, 5])
def test_bytes_page_without_cutting_characters(root, step):
    text = ""
    offset: int | None = 0
    while offset is not None:
        out = read(root, "docs/a.txt", offset=offset, max_bytes=step)
        text += out["text"]
        offset = out.get("next_offset")
    assert text == "hällo wörld"


def test_one_long_line_is_bounded(root):
    (root / "long").write_bytes(b"x" * 1_000_000 + b"\ntail\n")
    out = read(root, "long", start_line=1, max_bytes=100)
    assert (len(out["text"]), out["truncated"]) == (100, True)
    assert read(root, "long", start_line=2)["text"] == "tail\n"


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd", "../secret.txt", "docs/../../secret.txt", "..", "docs/.."),
        *("out", "out_relative", "out_dir/secret.txt", "chain", "inside_dir/../../secret.txt"),
        "//etc/passwd",
    ],
)
def test_ways_out_are_refused(root, path):
    with pytest.raises(Denied) as caught:
        read(root, path)
    assert caught.value.error_code == "E403"
    assert "'file_read'" in caught.value.message
    with pytest.raises(Denied):
        listed(root, path)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("docs", "NOT_A_FILE"),
        (".", "NOT_A_FILE"),
        ("pipe", "NOT_A_FILE"),
        ("binary", "NOT_TEXT"),
        ("nothing", "FILE_NOT_FOUND"),
        ("README.md/x", "FILE_NOT_FOUND"),
        ("a\0b", "ARGUMENTS_INVALID"),
        ("a" * 5_000, "ARGUMENTS_INVALID"),
        ("b" * 300, "FILE_UNREADABLE"),
    ],
)
def test_other_failures_say_what_is_wrong(root, path, code):
    with pytest.raises(HarnessError) as caught:
        read(root, path)
    assert caught.value.error_code == code
    assert "'file_read'" in caught.value.message


def test_a_link_to_itself_is_refused(root):
    with pytest.raises((Denied, NotFound)):
        read(root, "loop")


def test_a_missing_file_names_close_ones(root):
    with pytest.raises(NotFound, match=r"README\.md"):
        read(root, "READMA.md")


def test_a_link_swapped_in_while_opening_is_refused(root, tmp_path):
    """Swap a folder for a link out as fast as possible: no read may ever see the file outside."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.txt").write_text("canary")
    (root / "d1").mkdir()
    (root / "d1" / "a.txt").write_text("fine")
    (root / "link").symlink_to(outside)
    stop = threading.Event()

    def swap():
        while not stop.is_set():
            os.rename(root / "d1", root / "d2")
            os.rename(root / "link", root / "d1")
            os.rename(root / "d1", root / "link")
            os.rename(root / "d2", root / "d1")

    thread = threading.Thread(target=swap)
    thread.start()
    seen: set[bytes | str] = set()
    try:
        for _ in range(2_000):
            try:
                with open_file("file_read", root, "d1/a.txt") as fd:
                    seen.add(os.read(fd, 100))
            except HarnessError as problem:
                seen.add(problem.error_code)
    finally:
        stop.set()
        thread.join()
    assert b"canary" not in seen
    assert b"fine" in seen


def test_no_root_refuses():
    for module, arguments in [
        (file_read, {"path": "a"}),
        (file_list, {}),
        (append_line, {"file": "a", "line": "b"}),
    ]:
        with pytest.raises(Denied, match="HARNESS_TOOL__FILE_ROOT") as caught:
            call(tools(None, module), **arguments)
        assert caught.value.error_code == "E403"


def test_a_root_that_is_missing_is_the_operators_fault(tmp_path):
    with pytest.raises(Permanent, match="operator"):
        read(tmp_path / "none", "a")


def test_list(root):
    out = listed(root)
    kinds = {entry["name"]: entry["kind"] for entry in out["entries"]}
    assert kinds["README.md"] == "file"
    assert kinds["docs"] == "folder"
    assert kinds["out"] == "link"
    assert kinds["pipe"] == "other"
    assert out["total"] == len(kinds)
    assert not out["truncated"]
    assert [e["name"] for e in listed(root, "docs")["entries"]] == ["a.txt"]
    assert [e["name"] for e in listed(root, pattern="*.md")["entries"]] == ["README.md"]
    out = listed(root, max_entries=2, offset=1)
    assert (len(out["entries"]), out["truncated"]) == (2, True)
    with pytest.raises(NotFound):
        listed(root, "nothing")


def test_append_line_is_one_line_each(root):
    tool = tools(root, append_line)
    assert call(tool, file="log.txt", line="one") == {"file": "outbox/log.txt", "size_bytes": 4}
    call(tool, file="log.txt", line="zwei ü")
    assert (root / "outbox" / "log.txt").read_text() == "one\nzwei ü\n"


@pytest.mark.parametrize(
    "line", ["a\nb", "a\n", "a\rb", "a\u2028b", "\x85x\x85y", "x" * 5_000, "\ud800"]
)
def test_append_line_refuses_what_is_not_one_line(root, line):
    with pytest.raises(Invalid, match="wrote nothing"):
        call(tools(root, append_line), file="log.txt", line=line)
    assert not (root / "outbox").exists()


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "..", "x" * 101, "a\n", "/etc/x"])
def test_append_line_refuses_names_with_a_path(root, name):
    with pytest.raises(Invalid):
        call(tools(root, append_line), file=name, line="x")


def test_append_line_follows_no_link(root, tmp_path):
    outbox = root / "outbox"
    outbox.mkdir()
    (outbox / "log.txt").symlink_to(tmp_path / "secret.txt")
    os.mkfifo(outbox / "pipe")
    for name in ("log.txt", "pipe"):
        with pytest.raises((Denied, Invalid)):
            call(tools(root, append_line), file=name, line="x")
    assert (tmp_path / "secret.txt").read_text() == "canary"
    (outbox / "log.txt").unlink()
    (outbox / "pipe").unlink()
    outbox.rmdir()
    outbox.symlink_to(tmp_path)
    with pytest.raises(Denied):
        call(tools(root, append_line), file="new.txt", line="x")
    assert not (tmp_path / "new.txt").exists()
