"""The route /describe: what the vector of a text says, in words, through a bridge."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from decoder2vec.bridge.bridge import Bridge
from decoder2vec.serving.api_errors import ERROR_RESPONSES, APIError
from decoder2vec.serving.service import ServedModel, Service, get_service

router = APIRouter(responses=ERROR_RESPONSES)


class DescribeRequest(BaseModel):
    """A text whose vector is described."""

    model_config = ConfigDict(strict=True)
    text: str = Field(min_length=1)


class DescribeResponse(BaseModel):
    """What the bridge says with the vector, and without one."""

    description: str
    without_vector: str
    """What it says about every text: only what differs from this is due to the vector."""


@router.post("/describe", response_model=DescribeResponse)
async def describe(body: DescribeRequest, request: Request) -> JSONResponse:
    """Return what the vector of a text says in words, by the vector alone."""
    service = get_service(request)
    bridge = service.bridge
    if bridge is None:
        raise APIError(404, "This server describes no vectors; start it with --describe BRIDGE.", code="no_bridge")
    model = service.models[None]
    return JSONResponse(
        await service.run_job(request, model, [body.text], lambda: _describe(service, model, bridge, body.text))
    )


def _describe(service: Service, model: ServedModel, bridge: Bridge, text: str) -> dict[str, Any]:
    vector = service.queued_encoder(model).encode([text])
    description, blind = (bridge.describe(each)[0] for each in (vector, bridge.blank[None]))
    return {"description": description, "without_vector": blind}
