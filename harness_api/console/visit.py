"""One request of a person: who asks, what the form said, and how to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from fastapi import Request, Response
from starlette.responses import HTMLResponse, RedirectResponse

from harness_api.auth import Caller
from harness_api.console import nav
from harness_api.console.render import render

SAID = "harness_said"
"""A cookie that carries one notice over a redirect."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A request that passed its page's rule."""

    request: Request
    caller: Caller
    key_name: str
    token: str
    """For forms: see `ui.form`."""
    form: Mapping[str, str] = field(default_factory=dict)
    fields: Sequence[tuple[str, str]] = ()
    """The form in order, where a name may come more than once."""

    @property
    def htmx(self) -> bool:
        """Tell whether HTMX asks for a part of a page."""
        return "hx-request" in self.request.headers and ("hx-boosted" not in self.request.headers)

    def may(self, permission: str) -> bool:
        """Tell whether this person may do something; templates hide what they may not."""
        return permission in self.caller.permissions

    def all_of(self, name: str) -> list[str]:
        """Return every value of a form's field."""
        return [value for key, value in self.fields if key == name]

    def page(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """Answer with a whole page."""
        existing = frozenset(str(getattr(r, "path", "")) for r in self.request.app.routes)
        said = unquote(self.request.cookies.get(SAID, ""))[:500]
        answer = self.part(
            template,
            status,
            nav=nav.shown(self.caller.permissions, existing),
            here=nav.current(self.request.url.path),
            said=said,
            **values,
        )
        if said:
            answer.delete_cookie(SAID, path="/console")
        return answer

    def part(self, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """Answer with a part of a page."""
        text = render(self.request, template, visit=self, **values)
        return HTMLResponse(text, status)

    def go(self, path: str, said: str = "") -> Response:
        """Send the person on after a form, with a notice."""
        if self.htmx:
            answer: Response = Response(status_code=204, headers={"HX-Redirect": path})
        else:
            answer = RedirectResponse(path, 303)
        if said:
            answer.set_cookie(
                SAID, quote(said[:500]), max_age=60, path="/console", httponly=True, samesite="lax"
            )
        return answer
