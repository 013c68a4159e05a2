"""What `skill_read` shows of the skills that a run has pinned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness_common.contracts.skill import PinnedSkill
from harness_common.core.errors import NotFound, Permanent
from harness_common.core.message import Json


@dataclass(frozen=True, slots=True)
class InArtifact:
    """A document that is kept as an artifact."""

    head: dict[str, Json]
    artifact: str

    def shown(self, data: bytes) -> dict[str, Json]:
        """Return the document; raises `Permanent` when it is no text."""
        try:
            return self.head | {"text": data.decode()}
        except UnicodeDecodeError:
            raise Permanent(
                f"{self.artifact} is binary, not text: refer to it by its id", code="NOT_TEXT"
            ) from None


def skill_text(
    skills: Sequence[PinnedSkill], name: str, document: str | None
) -> dict[str, Json] | InArtifact:
    """Find a skill's text or document; raises `NotFound` that names those there are."""
    one = next((s for s in skills if s.pin.name == name), None)
    if one is None:
        known = ", ".join(s.pin.name for s in skills) or "none"
        raise NotFound(
            f"this run has no skill {name!r}; it has: {known}", code="SKILL_NOT_FOUND", skill=name
        )
    head: dict[str, Json] = {"skill": name, "version": one.pin.version}
    if document is None:
        return head | {"text": one.whole()}
    found = next((k for k in one.spec.knowledge if k.title == document), None)
    if found is None:
        titles = ", ".join(repr(k.title) for k in one.spec.knowledge) or "none"
        raise NotFound(
            f"the skill {name} has no document {document!r}; it has: {titles}",
            code="DOCUMENT_NOT_FOUND",
            skill=name,
        )
    head["document"] = found.title
    if found.text is not None:
        return head | {"text": found.text}
    assert found.artifact is not None
    return InArtifact(head, found.artifact)
