"""What goes wrong, in the shape that OpenAI's clients know: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from decoder2vec.errors import Decoder2VecError, InputError, MissingExtraError

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class APIError(Decoder2VecError):
    """An answer other than the one hoped for."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, wait: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
        self.wait = wait
        """Seconds after which it is worth to ask again."""

    def response(self) -> Response:
        """The answer. Signs beyond ASCII are escaped: half a surrogate pair in a name must not break it."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        headers = {} if self.wait is None else {"Retry-After": str(max(1, math.ceil(self.wait)))}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Response(json.dumps({"error": error}), self.status, headers, "application/json")


class ErrorShape(BaseModel):
    """Why a request was not answered."""

    message: str
    type: str
    param: str | None
    code: str | None


class ProblemShape(BaseModel):
    """Every answer that is not the one hoped for."""

    error: ErrorShape


PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ProblemShape, "description": "The request cannot be answered as it is."},
    "5XX": {"model": ProblemShape, "description": "The server cannot answer now."},
}
"""What every route may answer, for the schema."""


def problem_of(error: Exception) -> APIError:
    """The problem that an error is for the one who asked."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, RequestValidationError):
        return _wrong_shape(error.errors())
    if isinstance(error, HTTPException):
        return APIError(error.status_code, str(error.detail))
    if isinstance(error, MissingExtraError):
        return APIError(501, str(error), code="missing_extra")
    if isinstance(error, InputError):
        return APIError(400, str(error))
    if isinstance(error, Decoder2VecError):
        return APIError(503, str(error))
    return APIError(500, "Something went wrong in the server; its log says where.")


async def answer_problem(_: Request, error: Exception) -> Response:
    """For FastAPI, as the handler of errors."""
    response = problem_of(error).response()
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response


def _wrong_shape(found: Any) -> APIError:
    """The first thing that is wrong, by its place and never by what stands there."""
    first: Mapping[str, Any] = found[0] if found else {}
    if first.get("type") == "json_invalid":
        return APIError(400, "The body is not JSON.", code="invalid_json")
    # where a field may be one of several kinds, the place also names the kind that was tried first
    parts = [str(part) for part in first.get("loc", ())[1:]]
    place = ".".join(part for part in parts if "[" not in part and part not in ("str", "int"))
    message = str(first.get("msg", "cannot be used"))
    return APIError(400, f"{place or 'The body'}: {message}.", param=place or None)
