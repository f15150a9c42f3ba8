"""Errors as HTTP responses in the format of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`.

A client error is a 4xx with the message of the exception, which says what to change in the request. A server fault is a
5xx with a fixed message: the message of the exception may contain paths of the server or texts of other requests.
"""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from decoder2vec.errors import (
    BackboneError,
    DataFileError,
    Decoder2VecError,
    DivergedError,
    EncoderError,
    InputError,
    MissingExtraError,
    OtherProcessError,
    StorageError,
    UnsupportedError,
)

_ERROR_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
"""The `type` of statuses that have one of their own; others are invalid_request_error (4xx) or server_error (5xx)."""


class APIError(Decoder2VecError):
    """An error response.

    Args:
        status: HTTP status code.
        message: One sentence for the client.
        code: Machine-readable cause, such as "model_not_found".
        param: The field of the request that is wrong.
        retry_after: Seconds after which the client may try again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after = status, code, param, retry_after

    @property
    def type(self) -> str:
        """The error type as OpenAI names it."""
        return _ERROR_TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")

    def response(self) -> Response:
        """Return the HTTP response. JSON is ASCII only: a lone surrogate in a name could not be encoded as UTF-8."""
        error = {"message": str(self), "type": self.type, "param": self.param, "code": self.code}
        headers = {} if self.retry_after is None else {"Retry-After": str(max(1, math.ceil(self.retry_after)))}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return Response(json.dumps({"error": error}), self.status, headers, "application/json")


class ErrorBody(BaseModel):
    """Why a request failed."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """The body of every error response."""

    error: ErrorBody


ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorResponse, "description": "The request is wrong or not allowed."},
    "5XX": {"model": ErrorResponse, "description": "The server failed."},
}
"""The error responses of every route, for the OpenAPI schema."""


class _Rule(NamedTuple):
    status: int
    code: str | None
    message: str | None
    """The message for the client; None: that of the exception, which names nothing but the request."""


_SERVER_FAULT = _Rule(500, None, "Something went wrong in the server; its log says where.")
_DISK_FULL = _Rule(507, "disk_full", "The disk of the server is full.")
_RULES: dict[type[Exception], _Rule] = {
    InputError: _Rule(400, None, None),
    # 400 and not 422: OpenAI's API knows only 400 for a request that cannot be served, and the cure is the same
    UnsupportedError: _Rule(400, "unsupported", None),
    MissingExtraError: _Rule(501, "missing_extra", None),
    StorageError: _Rule(503, "storage_error", "The storage of the server is locked or damaged; its log says where."),
    # what cannot be read of a client's file is reported in the answer: this is a file of the server
    DataFileError: _Rule(500, "data_file_error", "A data file of the server cannot be read; its log says where."),
    BackboneError: _Rule(500, "backbone_error", "The language model of the server failed; its log says where."),
    EncoderError: _Rule(500, "encoder_error", "The encoder of the server is broken; its log says where."),
    DivergedError: _SERVER_FAULT,
    OtherProcessError: _SERVER_FAULT,
    Exception: _SERVER_FAULT,
}
"""Status, code and message by class of exception; a class without an entry has that of its nearest base class."""


def api_error_of(error: Exception) -> APIError:
    """Return the error response for an exception that a request raised."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, RequestValidationError):
        return _validation_error(error.errors())
    if isinstance(error, HTTPException):
        return APIError(error.status_code, str(error.detail))
    rule = next(_RULES[cls] for cls in type(error).__mro__ if cls in _RULES)
    if isinstance(error, StorageError | OSError) and _is_disk_full(error):
        rule = _DISK_FULL
    return APIError(rule.status, rule.message or str(error), code=rule.code)


async def handle_exception(request: Request, error: Exception) -> Response:
    """Return the error response for an exception; for `FastAPI.add_exception_handler`."""
    api_error = api_error_of(error)
    if isinstance(error, RequestValidationError) and not _is_json(request.headers.get("content-type", "")):
        # a body of another type is not parsed: a foreign page could send it through the user's browser without asking
        message = "The body must be JSON, with the header `Content-Type: application/json`."
        api_error = APIError(415, message, code="unsupported_media_type")
    response = api_error.response()
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)
    return response


def _is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


def _is_disk_full(error: BaseException | None) -> bool:
    """Whether the exception, or one that led to it, says that the disk is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


def _validation_error(errors: Sequence[Mapping[str, Any]]) -> APIError:
    """Return a 400 that names the first wrong field, and never its value."""
    first: Mapping[str, Any] = errors[0] if errors else {}
    if first.get("type") == "json_invalid":
        return APIError(400, "The body is not JSON.", code="invalid_json")
    # for a field that accepts several types, `loc` also holds the name of the type that was tried first
    location = [str(name) for name in first.get("loc", ())[1:]]
    param = ".".join(name for name in location if "[" not in name and name not in ("str", "int"))
    message = str(first.get("msg", "cannot be used"))
    if first.get("type") == "too_short":
        message = f"give at least {first['ctx']['min_length']}"
    return APIError(400, f"{param or 'The body'}: {message}.", param=param or None)
