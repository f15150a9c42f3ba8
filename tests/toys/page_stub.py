"""A stub server with the API of `d2v serve`: it returns fixed responses and records the requests."""

from __future__ import annotations

import base64
import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import decoder2vec
from decoder2vec.serving.document_routes import read_documents
from decoder2vec.serving.limits import Limits

PAGE_FOLDER = Path(decoder2vec.__file__).parent / "serving" / "page"
THEME_FILE = PAGE_FOLDER.parents[1] / "report" / "theme.css"
SWEEP_FILE = Path(__file__).parents[2] / "results" / "zero_shot" / "smollm2-135m-sweep.json"
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

MODELS_RESPONSE = {
    "object": "list",
    "data": [
        {
            "id": "smollm2-135m",
            "object": "model",
            "owned_by": "decoder2vec",
            "layer": 26,
            "pooling": "lasttoken",
            "template": 'This sentence: "{text}" means in one word:"',
            "fingerprint": "a30d061769047833",
        }
    ],
}
_CURVE = (34, 35, 37, 36, 39, 43, 46, 45, 49, 54, 58, 57, 61, 64, 68, 71, 70, 74, 77, 79, 80, 82, 81, 83, 85, 86, 87)
SCALE = {
    "unrelated": {"low": 0.12, "median": 0.25, "high": 0.4},
    "paraphrases": {"low": 0.7, "median": 0.83, "high": 0.95},
}
COMPARE_RESPONSE = {
    "similarity": 0.8712,
    "scale": SCALE,
    "layers": [{"layer": n, "similarity": x / 100 + 0.0012} for n, x in enumerate((*_CURVE, 86, 84, 81, 76))],
}


def hit(id: str, score: float, text: str, sentence: str, **metadata: str) -> dict:
    """A hit in which `sentence` is highlighted, with offsets in code points."""
    start = text.index(sentence)
    snippet = {"text": text, "highlights": [[start, start + len(sentence)]]}
    full_text = f"{text} The rest of the page is about other things."
    return {"id": id, "score": score, "text": full_text, "metadata": metadata, "snippet": snippet}


SEARCH_RESPONSE = {
    "hits": [
        hit(
            "notes/harbour.md",
            0.0325,
            "The harbour office opens at six. In a storm from the west the ferry stays in port, and the tickets of "
            "that day are good for the next. Dogs travel free of charge.",
            "In a storm from the west the ferry stays in port, and the tickets of that day are good for the next.",
            kind="note",
            year="2025",
        ),
        hit(
            "handbook.pdf",
            0.0311,
            "Crossings are cancelled above wind force nine. 🌊 Passengers are told by message an hour before.",
            "🌊 Passengers are told by message an hour before.",
            kind="handbook",
            page="14",
        ),
        hit(
            "minutes/2024-11.txt",
            0.0158,
            "The council asks for a second pier. Until then, boats wait in the lee of the island when it blows.",
            "Until then, boats wait in the lee of the island when it blows.",
            kind="minutes",
            year="2024",
        ),
    ]
}


def match(right: str, score: float, dense: float, lexical: float, **reasons: list) -> dict:
    """One match of a ranking."""
    return {"right": right, "score": score, "above": 0.97, "dense": dense, "lexical": lexical, **reasons}


def match_response(body: dict) -> dict:
    """A ranking of the right documents of the request for each left one."""
    first = {
        "sections": [
            {"left": "skills", "right": "skills", "score": 0.812},
            {"left": "whole text", "right": "experience", "score": 0.744},
        ],
        "matched": ["Kubernetes", "Terraform", "on-call duty", "Python"],
        "missing": ["monitoring", "degree"],
        "pairs": [
            {
                "left": "Keep our cloud-based systems healthy.",
                "right": "AWS and GCP, both certified.",
                "score": 0.7214,
            },
            {
                "left": "Kubernetes, Terraform, monitoring, on-call duty.",
                "right": "Five years of running production clusters for a bank, with on-call duty every third week.",
                "score": 0.6891,
            },
        ],
    }
    second = {"sections": [], "matched": ["Python", "monitoring"], "missing": ["Kubernetes", "Terraform"], "pairs": []}
    third = {"sections": [], "matched": [], "missing": ["Kubernetes", "Python"], "pairs": []}
    results = [(0.52, 0.781, 0.42, first), (0.238, 0.64, 0.1, second), (0.0, 0.412, 0.0, third)]
    ids = [document["id"] for document in body["right"]][: body["top"]]
    ranking = [match(id, *scores, **reasons) for id, (*scores, reasons) in zip(ids, results, strict=False)]
    rankings = [{"left": document["id"], "matches": ranking} for document in body["left"]]
    return {"score_meaning": "A score of 0 is what unrelated texts have.", "rankings": rankings}


def documents_response(body: dict) -> dict:
    """The documents that the server reads; of a PDF or Word file one with the bytes as its text."""
    content = base64.b64decode(body["content"])
    name, _, ending = body["name"].rpartition(".")
    if ending in ("pdf", "docx") and name != "broken":
        return {"documents": [{"id": body["name"], "text": content.decode(), "label": name}], "skipped": []}
    return read_documents(body["name"], content, Limits())


@dataclass
class StubServer:
    """The running server; tests replace `responses` and read `requests`."""

    address: str = ""
    responses: dict = field(default_factory=dict)
    """The response of each path: JSON, a function of the request body, or (status, message, headers) of an error."""
    requests: list = field(default_factory=list)
    """(path, headers, body) of each request."""
    compare_delay: float = 0.0
    """Seconds that `/compare` waits before it responds."""
    delayed_responses: int = 0
    """Number of responses sent after such a delay."""

    def reset(self) -> None:
        """Restore the default responses and forget all requests."""
        self.requests, self.compare_delay, self.delayed_responses = [], 0.0, 0
        self.responses = {
            "/v1/models": MODELS_RESPONSE,
            "/health": {"status": "ok", "model": "tiny"},
            "/compare": COMPARE_RESPONSE,
            "/describe": {"description": "a slow piano piece", "without_vector": "a description"},
            "/search": SEARCH_RESPONSE,
            "/match": match_response,
            "/documents": documents_response,
            "/sweep": json.loads(SWEEP_FILE.read_text(encoding="utf-8")),
        }

    def set_error(self, path: str, status: int, message: str | None, **headers: str) -> None:
        """Respond to a path with an error in OpenAI's format or, without a message, with a body that is not JSON."""
        self.responses[path] = (status, message, headers)

    def bodies(self, path: str) -> list:
        """Return the bodies sent to a path."""
        return [body for requested, _, body in self.requests if requested == path]


def serve(stub: StubServer) -> ThreadingHTTPServer:
    """Start the stub on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            path = self.path.partition("?")[0]
            name = "index.html" if path == "/" else path.removeprefix("/page/")
            if path == "/" or path.startswith("/page/"):
                file = THEME_FILE if name == THEME_FILE.name else PAGE_FOLDER / name
                return self.send(200, file.read_bytes(), CONTENT_TYPES[file.suffix])
            return self.respond(None)

        def do_POST(self):
            self.respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def respond(self, body):
            stub.requests.append((self.path, dict(self.headers), body))
            response = stub.responses.get(self.path, (404, "Not Found", {}))
            if self.path == "/compare" and stub.compare_delay:
                time.sleep(stub.compare_delay)
                stub.delayed_responses += 1
            if isinstance(response, tuple):
                status, message, headers = response
                text = json.dumps({"error": {"message": message, "type": "x", "code": None}}) if message else "<h1>no"
                return self.send(status, text.encode(), "application/json", headers)
            content = response(body) if callable(response) else response
            return self.send(200, json.dumps(content).encode(), "application/json")

        def send(self, status, content, content_type, headers=None):
            self.send_response(status)
            headers = {"Content-Type": content_type, "Content-Length": str(len(content)), **(headers or {})}
            for name, value in {**headers, "Content-Security-Policy": "default-src 'self'"}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.handle_error = True, lambda *_: None  # a page may disconnect
    stub.address = f"http://127.0.0.1:{server.server_port}/"
    stub.reset()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
