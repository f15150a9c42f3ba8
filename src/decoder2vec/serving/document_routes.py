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
from decoder2vec.matching.sides import SideDocument, read_documents
from decoder2vec.serving.api_errors import ERROR_RESPONSES
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
    """Return the texts of a PDF, Word, Excel, CSV or other file."""
    try:
        content = base64.b64decode(body.content, validate=True)
    except (binascii.Error, ValueError):
        raise InputError("content: give the bytes of the file in base64.") from None
    return JSONResponse(await get_service(request).run_in_thread(lambda: _read(body.name, content)))


def _read(name: str, content: bytes) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"file{Path(name).suffix.lower()[:10]}"  # of the client's name only the ending is used
        file.write_bytes(content)
        documents, skipped = read_documents(file, name)
    return {"documents": [_document_json(document) for document in documents], "skipped": skipped}


def _document_json(document: SideDocument) -> dict[str, str]:
    sections = [f"{name.title()}\n{value}" for name, value in document.fields.items() if field_kind(name)]
    text = "\n\n".join(filter(None, ["\n".join(filter(None, [document.title, document.text])), *sections]))
    clean = {"id": document.id, "text": text, "label": document.display_name}
    return {key: value.encode("utf-8", "replace").decode("utf-8") for key, value in clean.items()}
