"""The route /documents: the texts of a file that a user wants to match, read as `d2v match` reads it."""

from __future__ import annotations

import base64
import binascii
import tempfile
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from decoder2vec.errors import InputError
from decoder2vec.matching.sections import field_kind
from decoder2vec.matching.sides import SideDocument, read_file_documents
from decoder2vec.search.file_formats import TABLE_SUFFIXES, TEXT_SUFFIXES
from decoder2vec.serving.api_errors import ERROR_RESPONSES, APIError
from decoder2vec.serving.limits import Limits
from decoder2vec.serving.service import get_service

router = APIRouter(responses=ERROR_RESPONSES)


class FileRequest(BaseModel):
    """A file: its name, whose ending says the format, and its content."""

    model_config = ConfigDict(strict=True)
    name: Annotated[str, Field(min_length=1, max_length=1000)]
    content: Annotated[str, Field(description="The bytes of the file in base64.")]


class FileDocument(BaseModel):
    """A document of a file, as /match takes it, and a name to show."""

    id: str
    text: str
    label: str


class FileResponse(BaseModel):
    """The documents of a file, and one sentence for each part that cannot be used."""

    documents: list[FileDocument]
    skipped: list[str]


@router.post("/documents", response_model=FileResponse)
async def read_file(body: FileRequest, request: Request) -> JSONResponse:
    """Return the texts of a file: plain text, PDF, Word, Excel, CSV, JSON lines and others."""
    try:
        content = base64.b64decode(body.content, validate=True)
    except (binascii.Error, ValueError):
        raise InputError("content: give the bytes of the file in base64.") from None
    service = get_service(request)
    return JSONResponse(await service.read_in_thread(lambda: read_documents(body.name, content, service.limits)))


def read_documents(name: str, content: bytes, limits: Limits) -> dict[str, Any]:
    """Return the documents of a file and what was skipped, as plain data.

    Args:
        name: Name of the file on the client; its ending says the format.
        content: Its bytes.
        limits: Limits on the number and the length of the documents.
    """
    known = TEXT_SUFFIXES + TABLE_SUFFIXES
    suffix = next((suffix for suffix in known if name.lower().endswith(suffix)), "")
    if not suffix:
        reason = f"{name}: this kind of file is not supported; give {', '.join(known)}."
        return {"documents": [], "skipped": [reason.encode("utf-8", "replace").decode("utf-8")]}
    documents: list[dict[str, str]] = []
    skipped: list[str] = []
    n_characters = 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"file{suffix}"  # of the client's name only the ending is used
        file.write_bytes(content)
        for result in read_file_documents(file, name):
            if isinstance(result, str):
                skipped.append(result)
                continue
            documents.append(_document_json(result))
            n_characters += len(documents[-1]["text"])
            limits.check_texts(len(documents))
            # a small file may repeat one long text in every row
            if n_characters > limits.max_body_bytes:
                raise APIError(413, f"The file holds more than {limits.max_body_bytes} characters; split it.")
    return {"documents": documents, "skipped": skipped}


def _document_json(document: SideDocument) -> dict[str, str]:
    sections = [f"{name.title()}\n{value}" for name, value in document.fields.items() if field_kind(name)]
    text = "\n\n".join(filter(None, ["\n".join(filter(None, [document.title, document.text])), *sections]))
    clean = {"id": document.id, "text": text, "label": document.display_name}
    return {key: value.encode("utf-8", "replace").decode("utf-8") for key, value in clean.items()}
