"""32 concurrent clients: `d2v serve` against a plain FastAPI handler that calls `encode` for each request.

All servers use the same weights, every request is another text, and no vectors are cached. Each server runs in a
process of its own on the machine of the clients. Sentences are read under the default prompt, about 29 tokens; queries
of four words as plain text, about 7 tokens: the shorter the texts, the more batching gains.

The plain handlers encode one text at a time, since `encode` is not safe in two threads at once: one runs in the event
loop, one in FastAPI's threads with a lock. The ratio is to the faster of the two. The upper limit for any server is
`encode` on lists of as many texts as there are clients, without HTTP and with the machine to itself.

Run: python bench/serving.py [model] [requests] [clients] [--cpu]; --cpu counts CPU seconds of the server with one
thread, for a machine that is not quiet. Latencies are then still those of a wall clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
from fastapi import FastAPI, Request

from corpus import sentences, texts_of_length
from measure import fastest_runs, report

PLAIN_HANDLERS = ("in the event loop", "in threads, locked")
UPPER_LIMIT = "no server: lists"
METHODS = ("served", *PLAIN_HANDLERS, UPPER_LIMIT)
TEMPLATES = {"sentences": "prompteol", "queries": "plain"}
"""The kinds of texts, and the template that each is read under."""


def request_texts(kind: str, count: int) -> list[str]:
    """Return different texts of one kind."""
    if kind == "sentences":
        return sentences(count)
    return [f"{text} {n}" for n, text in enumerate(texts_of_length(count, 3))]


def create_server_app(method: str, kind: str, model: str):
    """Return the app of decoder2vec, or one with a plain handler."""
    from decoder2vec import Encoder, ServerConfig, create_app

    encoder = Encoder.from_pretrained(model, template=TEMPLATES[kind])
    if method == "served":
        return create_app(ServerConfig(encoder, cache_megabytes=0))
    app, lock = FastAPI(), threading.Lock()

    def embed(text: str) -> dict[str, object]:
        return {"data": [{"index": 0, "embedding": encoder.encode(text).tolist()}]}

    async def handle_in_loop(request: Request) -> dict[str, object]:
        return embed((await request.json())["input"])

    def handle_in_thread(body: dict[str, str]) -> dict[str, object]:
        with lock:
            return embed(body["input"])

    app.post("/v1/embeddings")(handle_in_loop if method == "in the event loop" else handle_in_thread)
    return app


def serve(method: str, kind: str, model: str) -> None:
    """Serve on a free port, which is printed first, until the process is terminated."""
    from decoder2vec.serving.app import bind, build_server

    app = create_server_app(method, kind, model)
    with bind("127.0.0.1", 0) as address:
        print(address.getsockname()[1], flush=True)
        build_server(app).run(sockets=[address])


async def send_requests(client: httpx.AsyncClient, texts: Iterator[str], seconds: list[float]) -> None:
    """Send one request after the other until the shared iterator is exhausted; append the seconds of each."""
    for text in texts:
        started = time.perf_counter()
        response = await client.post("/v1/embeddings", json={"input": text})
        response.raise_for_status()
        seconds.append(time.perf_counter() - started)


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load_test(
    port: str, texts: list[str], n_clients: int, clock: Callable[[], float]
) -> tuple[float, list[float]]:
    """Return the seconds of all requests together by a clock, and of each."""
    seconds: list[float] = []
    remaining = iter(texts)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600) as client:
        await asyncio.gather(*(send_requests(client, iter([f"warm {n}"]), []) for n in range(n_clients)))
        started = clock()
        await asyncio.gather(*(send_requests(client, remaining, seconds) for _ in range(n_clients)))
        return clock() - started, seconds


def measure_lists(args: argparse.Namespace) -> tuple[float, list[float]]:
    """Return the seconds of all texts together, and of each list, without a server."""
    from decoder2vec import Encoder

    encoder = Encoder.from_pretrained(args.model, template=TEMPLATES[args.kind])
    texts, seconds = request_texts(args.kind, args.requests), []
    encoder.encode([f"warm {n}" for n in range(args.clients)])
    clock = time.process_time if args.cpu else time.perf_counter
    for start in range(0, len(texts), args.clients):
        started = clock()
        encoder.encode(texts[start : start + args.clients])
        seconds.append(clock() - started)
    return sum(seconds), seconds


def measure_server(args: argparse.Namespace) -> tuple[float, list[float]]:
    """Return the seconds of all requests together, and of each, with a server in a process of its own."""
    command = [sys.executable, *sys.argv, "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            port = server.stdout.readline().strip()
            clock = (lambda: cpu_seconds(server.pid)) if args.cpu else time.perf_counter
            return asyncio.run(load_test(port, request_texts(args.kind, args.requests), args.clients, clock))
        finally:
            server.terminate()


def measure(args: argparse.Namespace) -> None:
    """Measure one method and print the result as JSON."""
    total, latencies = (measure_lists if args.method == UPPER_LIMIT else measure_server)(args)
    p50, p99 = np.quantile(latencies, [0.5, 0.99])
    print(json.dumps({"seconds": total, "p50": p50, "p99": p99}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("requests", nargs="?", type=int, default=192)
    parser.add_argument("clients", nargs="?", type=int, default=32)
    parser.add_argument("--method", choices=METHODS)
    parser.add_argument("--kind", choices=list(TEMPLATES))
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    if args.cpu:
        os.environ["OMP_NUM_THREADS"] = "1"  # inherited by the processes of all methods
    if args.serve:
        return serve(args.method, args.kind, args.model)
    if args.method:
        return measure(args)
    rows, ratios, limits = [], {}, {}
    for kind in TEMPLATES:
        options = (args.model, str(args.requests), str(args.clients), "--kind", kind, *["--cpu"] * args.cpu)
        runs = fastest_runs(__file__, METHODS, *options)
        rates = {method: args.requests / run["seconds"] for method, run in runs.items()}
        plain = max(rates[method] for method in PLAIN_HANDLERS)
        ratios[kind], limits[kind] = round(rates["served"] / plain, 2), round(rates[UPPER_LIMIT] / plain, 2)
        rows += [
            (kind, method, f"{rates[method]:.1f}", *(f"{1000 * run[name]:.0f}" for name in ("p50", "p99")))
            for method, run in runs.items()
        ]
    columns = ("texts", "server", f"requests per {'CPU second' if args.cpu else 'second'}", "p50 ms", "p99 ms")
    report("serving", columns, rows, model=args.model, clients=args.clients, ratios=ratios, limits=limits)


if __name__ == "__main__":
    main()
