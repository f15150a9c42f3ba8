"""A server that keeps the contract of `d2v serve`, answers made-up things, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import decoder2vec

PAGE = Path(decoder2vec.__file__).parent / "serving" / "page"
SWEEP = Path(__file__).parents[2] / "results" / "zero_shot" / "smollm2-135m-sweep.json"
KINDS = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

MODELS = {
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
COMPARED = {
    "similarity": 0.8712,
    "layers": [{"layer": n, "similarity": x / 100 + 0.0012} for n, x in enumerate((*_CURVE, 86, 84, 81, 76))],
}


def hit(id: str, score: float, text: str, sentence: str, **metadata: str) -> dict:
    """A document of which `sentence` is marked, counted as Python counts characters."""
    start = text.index(sentence)
    snippet = {"text": text, "highlights": [[start, start + len(sentence)]]}
    more = f"{text} The rest of the page is about other things."
    return {"id": id, "score": score, "text": more, "metadata": metadata, "snippet": snippet}


FOUND = {
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
    """One line of a ranking."""
    return {"right": right, "score": score, "dense": dense, "lexical": lexical, **reasons}


def matched(body: dict) -> dict:
    """A ranking for each document asked about, of the documents that were sent."""
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
    lines = [(1.0, 0.781, 6.42, first), (0.438, 0.64, 2.9, second), (0.0, 0.412, 0.0, third)]
    ids = [one["id"] for one in body["right"]][: body["top"]]
    ranking = [match(id, *scores, **why) for id, (*scores, why) in zip(ids, lines, strict=False)]
    return {"rankings": [{"left": one["id"], "matches": ranking} for one in body["left"]]}


@dataclass
class Stub:
    """The running server: `answers` by path can be replaced, `asked` is what came in."""

    address: str = ""
    answers: dict = field(default_factory=dict)
    asked: list = field(default_factory=list)
    slow: float = 0.0
    """Seconds that `/compare` takes from now on."""
    slept: int = 0
    """How many answers took their time and went out."""

    def reset(self) -> None:
        """As it was at first."""
        self.asked, self.slow, self.slept = [], 0.0, 0
        self.answers = {
            "/v1/models": MODELS,
            "/compare": COMPARED,
            "/search": FOUND,
            "/match": matched,
            "/sweep": json.loads(SWEEP.read_text(encoding="utf-8")),
        }

    def refuse(self, path: str, status: int, message: str | None, **headers: str) -> None:
        """Answer with an error, in OpenAI's shape or, without a message, with no JSON at all."""
        self.answers[path] = (status, message, headers)

    def bodies(self, path: str) -> list:
        """What was sent to a path."""
        return [body for asked, _, body in self.asked if asked == path]


def serve(stub: Stub) -> ThreadingHTTPServer:
    """Start it on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            path = self.path.partition("?")[0]
            name = "index.html" if path == "/" else path.removeprefix("/page/")
            if path == "/" or path.startswith("/page/"):
                return self.send(200, (PAGE / name).read_bytes(), KINDS[Path(name).suffix])
            return self.answer(None)

        def do_POST(self):
            self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def answer(self, body):
            stub.asked.append((self.path, dict(self.headers), body))
            said = stub.answers.get(self.path, (404, "Not Found", {}))
            if self.path == "/compare" and stub.slow:
                time.sleep(stub.slow)
                stub.slept += 1
            if isinstance(said, tuple):
                status, message, headers = said
                shape = json.dumps({"error": {"message": message, "type": "x", "code": None}}) if message else "<h1>no"
                return self.send(status, shape.encode(), "application/json", headers)
            said = said(body) if callable(said) else said
            return self.send(200, json.dumps(said).encode(), "application/json")

        def send(self, status, content, kind, headers=None):
            self.send_response(status)
            headers = {"Content-Type": kind, "Content-Length": str(len(content)), **(headers or {})}
            for name, value in {**headers, "Content-Security-Policy": "default-src 'self'"}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.handle_error = True, lambda *_: None  # a page may hang up
    stub.address = f"http://127.0.0.1:{server.server_port}/"
    stub.reset()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
