"""The console: the pages that people use, served by the API at `/console`.

Pages call the same functions as the routes under /v1, never HTTP, and show what they return through
Jinja templates that escape everything. HTMX fetches parts of pages; nothing is built.

How a page is added (say, agents):

1. `pages/agents.py` makes a router and states a rule for each route; without one the app refuses to
   start::

       router = new_pages("/console/agents")

       @router.get("")
       async def agents_page(services: Use, visit: Annotated[Visit, requires_page("agents:read")]):
           found = await agents.get_agents(services, visit.caller)
           return visit.page("agents.html", agents=found.data)

       @router.post("/{name}/pause")
       async def pause(name: str, visit: Annotated[Visit, requires_page("agents:write")]):
           ...  # the CSRF check is done; visit.form["reason"] is what was sent
           return visit.go(f"/console/agents/{name}", said="Paused.")

2. `pages/__init__.py` lists the router in `PAGES`; `nav.py` has its line in `NAV` (links whose page
   does not exist yet are not shown).
3. `templates/agents.html` extends `base.html` and fills the blocks `title` and `content`;
   `{% import "macros.html" as ui with context %}` has table, chip, empty, pager, when, money, json
   and `form` (which carries the CSRF token). No inline style or handler: the CSP forbids them.
4. `tests/console/test_agents.py` uses the fixtures `visitor` (an httpx client logged in as admin)
   and `login_as(role)`.

Errors that a route raises (`HarnessError`) become a page, or a notice where HTMX asked.
`visit.htmx` tells whether a part is wanted: answer with `visit.part("_rows.html", …)`.
"""
