"""32 clients at once: the server against a plain FastAPI handler that calls `encode` for each request.

Same weights, every text another, no vectors remembered. Each server runs in a process of its own, beside the clients.
The plain handlers read one text at a time, since `encode` does not bear two threads: one in the event loop, one in
FastAPI's threads behind a lock; the ratio is to the faster of the two.

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

from corpus import sentences
from measure import in_turn, report

WAYS = ("served", "in the event loop", "in threads, locked")


def app_of(way: str, model: str):
    from decoder2vec import Encoder

    encoder = Encoder.from_pretrained(model)
    if way == "served":
        from decoder2vec.serving.app import create_app
        from decoder2vec.serving.service import Offer

        return create_app(Offer(encoder, cache_megabytes=0))
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


def serve(way: str, model: str) -> None:
    from decoder2vec.serving.run import bind, server_of

    app = app_of(way, model)
    with bind("127.0.0.1", 0) as address:
        print(address.getsockname()[1], flush=True)
        server_of(app).run(sockets=[address])


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


def one_way(way: str, model: str, requests: int, clients: int) -> None:
    command = [sys.executable, __file__, model, str(requests), str(clients), "--way", way, "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            port = server.stdout.readline().strip()
            total, each = asyncio.run(load(port, sentences(requests), clients))
        finally:
            server.terminate()
    p50, p99 = np.quantile(each, [0.5, 0.99])
    print(json.dumps({"seconds": total, "p50": p50, "p99": p99}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("requests", nargs="?", type=int, default=320)
    parser.add_argument("clients", nargs="?", type=int, default=32)
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--serve", action="store_true")
    asked = parser.parse_args()
    if asked.serve:
        return serve(asked.way, asked.model)
    if asked.way:
        return one_way(asked.way, asked.model, asked.requests, asked.clients)
    found = in_turn(__file__, WAYS, asked.model, str(asked.requests), str(asked.clients))
    rates = {way: asked.requests / one["seconds"] for way, one in found.items()}
    plain = max(rate for way, rate in rates.items() if way != "served")
    rows = [
        (way, f"{rates[way]:.1f}", f"{1000 * found[way]['p50']:.0f}", f"{1000 * found[way]['p99']:.0f}") for way in WAYS
    ]
    columns = ("server", "requests/s", "p50 ms", "p99 ms")
    facts = {"model": asked.model, "clients": asked.clients, "ratio": round(rates["served"] / plain, 2)}
    report("serving", columns, rows, **facts)


if __name__ == "__main__":
    main()
