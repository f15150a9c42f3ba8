"""What the server does, in numbers that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from decoder2vec.serving.vectors import CachedVectors

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class _QueueNumbers(Collector):
    """Reads the queue and the cache when it is asked, so that they need not know of metrics."""

    def __init__(self, vectors: CachedVectors) -> None:
        self._vectors = vectors

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        stats, cache = self._vectors.batcher.stats, self._vectors.cache
        yield GaugeMetricFamily("d2v_queue_tokens", "Tokens that wait.", self._vectors.batcher.waiting)
        yield GaugeMetricFamily("d2v_cache_bytes", "Vectors that are remembered.", cache.bytes)
        counts = {
            "d2v_batches": ("Batches that were read.", stats.batches),
            "d2v_texts": ("Texts that were read.", stats.texts),
            "d2v_tokens": ("Tokens that were read.", stats.tokens),
            "d2v_dropped_texts": ("Texts that nobody waited for any more.", stats.dropped),
            "d2v_model_seconds": ("Time the model ran.", stats.seconds),
            "d2v_cache_hits": ("Vectors that were remembered.", cache.hits),
            "d2v_cache_misses": ("Vectors that were not.", cache.misses),
        }
        for name, (meaning, value) in counts.items():
            yield CounterMetricFamily(name, meaning, value)


class Metrics:
    """Requests by route and status, and how long they took; the queue and the cache."""

    def __init__(self, vectors: CachedVectors) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_QueueNumbers(vectors))
        self._requests = Counter(
            "d2v_requests", "Requests that were answered.", ["route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "d2v_request_seconds", "Time to the answer.", ["route"], buckets=_SECONDS, registry=self._registry
        )

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """In Prometheus' own format."""
        return generate_latest(self._registry)
