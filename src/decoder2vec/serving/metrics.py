"""Metrics of the server in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from decoder2vec.serving.vector_cache import CachedBatcher

_DURATION_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class _QueueCollector(Collector):
    """Reads the counters of queue and cache on every scrape, so that these need not know of metrics."""

    def __init__(self, cached_batcher: CachedBatcher) -> None:
        self._cached_batcher = cached_batcher

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        batcher, cache = self._cached_batcher.batcher, self._cached_batcher.cache
        stats = batcher.stats
        yield GaugeMetricFamily("d2v_queue_tokens", "Tokens in the queue.", batcher.waiting_tokens)
        yield GaugeMetricFamily("d2v_cache_bytes", "Size of the cached vectors.", cache.bytes)
        counters = {
            "d2v_batches": ("Encoded batches.", stats.batches),
            "d2v_texts": ("Encoded texts.", stats.texts),
            "d2v_tokens": ("Encoded tokens.", stats.tokens),
            "d2v_dropped_texts": ("Texts not encoded because the client disconnected.", stats.dropped),
            "d2v_model_seconds": ("Time spent encoding.", stats.seconds),
            "d2v_cache_hits": ("Vectors found in the cache.", cache.hits),
            "d2v_cache_misses": ("Vectors not found in the cache.", cache.misses),
        }
        for name, (description, value) in counters.items():
            yield CounterMetricFamily(name, description, value)


class Metrics:
    """Counts and durations of requests by route and status, and the counters of queue and cache."""

    def __init__(self, cached_batcher: CachedBatcher) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_QueueCollector(cached_batcher))
        self._requests = Counter("d2v_requests", "Answered requests.", ["route", "status"], registry=self._registry)
        self._durations = Histogram(
            "d2v_request_seconds",
            "Time to the response.",
            ["route"],
            buckets=_DURATION_BUCKETS,
            registry=self._registry,
        )

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(route, str(status)).inc()
        self._durations.labels(route).observe(seconds)

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
