"""The routes of the web page and of monitoring: /, /page/, /sweep, /health and /metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from decoder2vec.serving.api_errors import ERROR_RESPONSES, APIError
from decoder2vec.serving.service import get_service

PAGE_FOLDER = Path(__file__).parent / "page"
THEME_FILE = Path(__file__).parents[1] / "report" / "theme.css"
"""The style that the page shares with all reports."""

router = APIRouter(responses=ERROR_RESPONSES)


def page_files() -> StaticFiles:
    """Return the application that serves the files of the page; a path outside their folder is a 404."""
    return StaticFiles(directory=PAGE_FOLDER)


@router.get("/", include_in_schema=False)
async def page() -> FileResponse:
    """Return the page."""
    return FileResponse(PAGE_FOLDER / "index.html")


@router.get("/page/theme.css", include_in_schema=False)
async def theme() -> FileResponse:
    """Return the style that the page shares with all reports."""
    return FileResponse(THEME_FILE)


@router.get("/health")
async def health(request: Request) -> dict[str, str]:
    """Report that the server runs, and what it serves."""
    service = get_service(request)
    reranker = {"reranker": service.reranker_name} if service.reranker else {}
    return {"status": "ok", "model": service.models[None].id, **reranker}


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Return the metrics for Prometheus."""
    return Response(get_service(request).metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/sweep")
async def sweep(request: Request) -> dict[str, Any]:
    """Return the sweep.json that the server was started with."""
    content = get_service(request).sweep
    if content is None:
        raise APIError(404, "This server has no sweep; start it with --sweep sweep.json.", code="no_sweep")
    return Response(content, media_type="application/json")  # type: ignore[return-value]
