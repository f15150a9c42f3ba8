"""What is there to look at: the page, a sweep, the health and the metrics of the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from decoder2vec.serving.api_errors import PROBLEMS, APIError
from decoder2vec.serving.service import service_of

PAGE = Path(__file__).parent / "page"

router = APIRouter(responses=PROBLEMS)


def page_files() -> StaticFiles:
    """The files of the page; a name that leads out of their folder is not found."""
    return StaticFiles(directory=PAGE)


@router.get("/", include_in_schema=False)
async def page() -> FileResponse:
    """The page."""
    return FileResponse(PAGE / "index.html")


@router.get("/health")
async def health(request: Request) -> dict[str, str]:
    """Is the server there?"""
    return {"status": "ok", "model": service_of(request).models[None].id}


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    return Response(service_of(request).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/sweep")
async def sweep(request: Request) -> dict[str, Any]:
    """What a sweep found, as `d2v sweep` wrote it."""
    content = service_of(request).sweep
    if content is None:
        raise APIError(404, "This server shows no sweep; start it with --sweep sweep.json.", code="no_sweep")
    return Response(content, media_type="application/json")  # type: ignore[return-value]
