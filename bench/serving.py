"""32 clients at once: the server against a plain FastAPI handler that calls `encode` for each request.

Same weights, every text another, no vectors remembered. Each server runs in a process of its own, beside the clients.
Sentences are read under the default prompt, some 29 tokens; queries of four words as they are, some 7: the fewer tokens
a text has, the more is gained by reading it together with others.
The plain handlers read one text at a time, since `encode` does not bear two threads: one in the event loop, one in
FastAPI's threads behind a lock; the ratio is to the faster of the two. The most that any server could reach is what
`encode` does on lists of as many texts as there are clients, without HTTP and with the machine to itself.

Run: python bench/serving.py [model] [requests] [clients]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import httpx
import numpy as np
from fastapi import FastAPI, Request

from corpus import of_length, sentences
from measure import in_turn, report

PLAIN = ("in the event loop", "in threads, locked")
LIMIT = "no server: lists"
WAYS = ("served", *PLAIN, LIMIT)
KINDS = {"sentences": "prompteol", "queries": "plain"}
"""What is asked, and the template it is read under."""


def texts_of(kind: str, count: int) -> list[str]:
    return sentences(count) if kind == "sentences" else [f"{text} {n}" for n, text in enumerate(of_length(count, 3))]


def app_of(way: str, kind: str, model: str):
    from decoder2vec import Encoder

    encoder = Encoder.from_pretrained(model, template=KINDS[kind])
    if way == "served":
        from decoder2vec.serving.app import create_app
        from decoder2vec.serving.service import ServerConfig

        return create_app(ServerConfig(encoder, cache_megabytes=0))
    app, lock = FastAPI(), threading.Lock()

    def answer(text: str) -> dict[str, object]:
        return {"data": [{"index": 0, "embedding": encoder.encode(text).tolist()}]}

    async def in_loop(request: Request) -> dict[str, object]:
        return answer((await request.json())["input"])

    def in_thread(asked: dict[str, str]) -> dict[str, object]:
        with lock:
            return answer(asked["input"])

    app.post("/v1/embeddings")(in_loop if way == "in the event loop" else in_thread)
    return app


def serve(way: str, kind: str, model: str) -> None:
    from decoder2vec.serving.app import bind, build_server

    app = app_of(way, kind, model)
    with bind("127.0.0.1", 0) as address:
        print(address.getsockname()[1], flush=True)
        build_server(app).run(sockets=[address])


async def ask(client: httpx.AsyncClient, texts: Iterator[str], seconds: list[float]) -> None:
    for text in texts:
        started = time.perf_counter()
        answer = await client.post("/v1/embeddings", json={"input": text})
        answer.raise_for_status()
        seconds.append(time.perf_counter() - started)


async def load(port: str, texts: list[str], clients: int) -> tuple[float, list[float]]:
    """Seconds of all requests together, and of each."""
    seconds: list[float] = []
    left = iter(texts)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600) as client:
        await asyncio.gather(*(ask(client, iter([f"warm {number}"]), []) for number in range(clients)))
        started = time.perf_counter()
        await asyncio.gather(*(ask(client, left, seconds) for _ in range(clients)))
        return time.perf_counter() - started, seconds


def lists(asked: argparse.Namespace) -> tuple[float, list[float]]:
    """Seconds of all texts together, and of each list."""
    from decoder2vec import Encoder

    encoder = Encoder.from_pretrained(asked.model, template=KINDS[asked.kind])
    texts, seconds = texts_of(asked.kind, asked.requests), []
    encoder.encode([f"warm {number}" for number in range(asked.clients)])
    for begin in range(0, len(texts), asked.clients):
        started = time.perf_counter()
        encoder.encode(texts[begin : begin + asked.clients])
        seconds.append(time.perf_counter() - started)
    return sum(seconds), seconds


def served(asked: argparse.Namespace) -> tuple[float, list[float]]:
    """Seconds of all requests together, and of each, with a server in a process of its own."""
    command = [sys.executable, *sys.argv, "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            port = server.stdout.readline().strip()
            return asyncio.run(load(port, texts_of(asked.kind, asked.requests), asked.clients))
        finally:
            server.terminate()


def one_way(asked: argparse.Namespace) -> None:
    total, each = (lists if asked.way == LIMIT else served)(asked)
    p50, p99 = np.quantile(each, [0.5, 0.99])
    print(json.dumps({"seconds": total, "p50": p50, "p99": p99}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("requests", nargs="?", type=int, default=192)
    parser.add_argument("clients", nargs="?", type=int, default=32)
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--kind", choices=list(KINDS))
    parser.add_argument("--serve", action="store_true")
    asked = parser.parse_args()
    if asked.serve:
        return serve(asked.way, asked.kind, asked.model)
    if asked.way:
        return one_way(asked)
    rows, ratios, limits = [], {}, {}
    for kind in KINDS:
        options = (asked.model, str(asked.requests), str(asked.clients), "--kind", kind)
        found = in_turn(__file__, WAYS, *options)
        rates = {way: asked.requests / one["seconds"] for way, one in found.items()}
        plain = max(rates[way] for way in PLAIN)
        ratios[kind], limits[kind] = round(rates["served"] / plain, 2), round(rates[LIMIT] / plain, 2)
        rows += [
            (kind, way, f"{rates[way]:.1f}", *(f"{1000 * found[way][name]:.0f}" for name in ("p50", "p99")))
            for way in WAYS
        ]
    columns = ("texts", "server", "requests/s", "p50 ms", "p99 ms")
    report("serving", columns, rows, model=asked.model, clients=asked.clients, ratios=ratios, limits=limits)


if __name__ == "__main__":
    main()
