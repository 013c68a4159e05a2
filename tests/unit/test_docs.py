"""What the documents say is so: links lead somewhere, commands parse, settings exist, and
pages that are made from the code are as the code is now.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from harness_api.cli.main import app as cli
from harness_common.settings import _NOT_SETTINGS, Settings
from tests.test_house import tracked_files

ROOT = Path(__file__).parents[2]
PAGES = sorted(p for p in tracked_files() if p.suffix == ".md")
MADE = {"api.md", "cli.md", "settings.md", "states.md"}
_FENCE = re.compile(r"^ *(```|~~~)")
_PLACEHOLDER = re.compile(r"^[A-Z][A-Z_]*$|…|\.\.\.|^\[|\]$")
_OF_OTHERS = {"HARNESS_SERVICE_HOST", "HARNESS_IMAGE", "HARNESS_SITE", "HARNESS_HTTPS_PORT"}
"""Named as what Kubernetes sets, and as what docker-compose.yml reads."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def slug(heading: str) -> str:
    """Make the anchor of a heading, as code hosts do."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    found, fenced = set(), False
    for line in page.read_text(encoding="utf-8").splitlines():
        fenced ^= bool(_FENCE.match(line))
        heading = re.match(r"#{1,6} +(.+)", line)
        if heading and not fenced:
            found.add(slug(heading[1]))
        found |= set(re.findall(r'<a (?:id|name)="([^"]+)"', line))
    return frozenset(found)


def broken_links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        target, _, anchor = link.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        file = (page.parent / target).resolve() if target else page
        is_here = file.exists()
        if not is_here or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_their_anchors_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_the_link_check_sees_what_is_broken(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A heading, *with* `code`\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](other.md#a-heading-with-code) [b](#here) [c](none.md) [d](other.md#no) "
        "[e](#no)\n```\n[f](none.md)\n```\n"
    )
    assert broken_links(page) == ["none.md", "other.md#no", "#no"]


def test_every_page_of_docs_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    missing = [
        name(p)
        for p in PAGES
        if p.parent.name in {"docs", "adr"} and p.name != "README.md"
        and f"({p.relative_to(ROOT / 'docs')})" not in index
    ]  # fmt: skip
    assert missing == []


def commands_of(text: str) -> Iterator[str]:
    """Give the `harness …` command lines of a page: in blocks of code, and between backticks,
    where a command may stand for itself: these end with the placeholder `…`.
    """
    blocks = "".join(re.findall(r"```(?:bash|sh|console)?\n(.*?)```", text, re.DOTALL))
    blocks += "\n".join(re.findall(r"^    (.+)$", text, re.MULTILINE)) + "\n"
    lines = blocks.replace("\\\n", " ").splitlines()
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines += [f"{line} …" for line in re.findall(r"`([^`\n]*harness [^`\n]*)`", prose)]
    for line in lines:
        found = re.match(r"^\s*(?:\$ )?(?:[A-Z_]+=\S* )*(?:\S*/)?harness( .*)", line)
        if found:
            yield f"harness{found[1]}"


def words_of(line: str) -> list[str]:
    """Split a command line up to its comment, pipe or next command."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;><")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    for word in lexer:
        if re.fullmatch(r"[|&;<>]+", word) or word.startswith("#"):
            break
        words.append(word)
    return words


@cache
def tree() -> object:
    return typer.main.get_command(cli)


def problem_of(line: str) -> str | None:
    """Say why a command line is none of ours; None when it is one."""
    try:
        words = words_of(line)[1:]
    except ValueError as error:
        return str(error)
    command: Any = tree()
    path = ["harness"]
    while hasattr(command, "commands"):
        while words and words[0].startswith("--"):
            words = words[2:] if words[0] == "--url" else words[1:]
        if not words or _PLACEHOLDER.search(words[0]):
            return None
        if words[0] not in command.commands:
            return f"{' '.join(path)} has no command {words[0]!r}"
        command = command.commands[words[0]]
        path.append(words.pop(0))
    if "--help" in words:
        return None
    options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
    for word in words:
        given = word.partition("=")[0]
        if re.match(r"--?[a-zA-Z]", given) and given not in options:
            return f"{' '.join(path)} has no option {given}"
    return None if any(_PLACEHOLDER.search(w) for w in words) else parse(command, words)


def parse(command: Any, words: list[str]) -> str | None:
    """Parse the words as the command line does, without doing it."""
    try:
        command.make_context("harness", list(words), resilient_parsing=False)
    except typer.Exit:
        return None
    except Exception as error:  # noqa: BLE001 - whatever the parser raises is what is wrong
        return None if "does not exist" in str(error) else f"{command.name}: {error}"
    return None


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in MADE], ids=name)
def test_every_command_line_is_one_of_ours(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    wrong = {line: why for line in commands_of(text) if (why := problem_of(line)) is not None}
    assert wrong == {}


def test_the_check_of_commands_sees_what_is_wrong() -> None:
    shown = (
        "```\nX=1 harness runs sumbit a b\n.venv/bin/harness runs list --statsu x | less\n"
        "harness keys create\n```\nBy `harness keys create` and `harness kesy`."
    )
    found = [problem_of(line) for line in commands_of(shown)]
    assert found[0] == "harness runs has no command 'sumbit'"
    assert found[1] == "harness runs list has no option --statsu"
    assert found[2] is not None
    assert "Missing" in found[2]
    assert found[3:] == [None, "harness has no command 'kesy'"]
    assert problem_of("harness runs submit demo 'hello' --follow") is None


@cache
def setting_names() -> frozenset[str]:
    names = set(_NOT_SETTINGS)
    for field, info in Settings.model_fields.items():
        inner = getattr(info.annotation, "model_fields", None)
        names |= {f"HARNESS_{field.upper()}"} if inner is None else set()
        names |= {f"HARNESS_{field.upper()}__{one.upper()}" for one in inner or ()}
    return frozenset(names)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_setting_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"(?<!\w)HARNESS_[A-Z][A-Z0-9_]*[A-Z0-9]\b(?![*_…])", text))
    assert named - setting_names() - _OF_OTHERS == set()


@pytest.mark.parametrize("script", ["reference.py", "picture.py"])
def test_what_is_made_from_the_code_is_as_it_is(script: str) -> None:
    check = subprocess.run(
        [sys.executable, f"docs/{script}", "--check"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert check.returncode == 0, check.stderr
