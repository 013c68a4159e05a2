"""Circuit breakers of a tenant's models: which models fail now, and asking one again by hand."""

from __future__ import annotations

from typing import Annotated

from harness_api.auth import Caller, requires
from harness_api.deps import Use
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.model_breakers import ModelBreakerView, ModelReset
from harness_common.core.fallback import MODEL_PREFIX, model_key
from harness_common.store.breakers import list_breakers, reset_breaker
from harness_common.store.connection import Row

router = new_router("/v1/models", "models")


def breaker_view(row: Row) -> ModelBreakerView:
    """Show a breaker; `shown` is its state for people."""
    names = set(ModelBreakerView.model_fields) - {"state", "model"}
    model = row["tool"].removeprefix(MODEL_PREFIX)
    return ModelBreakerView(state=row["shown"], model=model, **{name: row[name] for name in names})


@router.get("/breakers", operation_id="listModelBreakers", response_model=Page[ModelBreakerView])
async def get_breakers(
    services: Use, caller: Annotated[Caller, requires("workers:read")]
) -> Page[ModelBreakerView]:
    """List the models that failed lately, those that are passed over now first."""
    rows = await list_breakers(services.db, caller.tenant_id, models=True)
    return Page(data=[breaker_view(row) for row in rows])


@router.post("/breakers/reset", operation_id="resetModelBreaker", response_model=ModelBreakerView)
async def post_reset(
    body: ModelReset, services: Use, caller: Annotated[Caller, requires("agents:write")]
) -> ModelBreakerView:
    """Forget the faults of a model: it is asked again at once. 404 when none are known."""
    key = model_key(body.model)
    row = await reset_breaker(services.db, caller.tenant_id, key, actor=caller.actor)
    # Workers that do not hear it ask the model at the end of its time, and learn it then.
    await services.channel.breaker({"tenant_id": caller.tenant_id.hex, "tool": key})
    return breaker_view({**row, "shown": "closed", "failures": 0, "successes": 0, "until": None})
