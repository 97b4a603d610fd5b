"""Prometheus figures of one server; gauges are read from the store when somebody asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

_SECONDS = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counters and histograms that runs feed, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        make: dict[str, Any] = {"registry": self.registry, "namespace": "yellowsound"}
        self._wait = Histogram("job_wait_seconds", "Time in the queue", ["model"], buckets=_SECONDS, **make)
        self._run = Histogram("job_run_seconds", "Time of the engine", ["model"], buckets=_SECONDS, **make)
        self._stage = Histogram("stage_seconds", "Time by stage", ["model", "stage"], buckets=_SECONDS, **make)
        self._completed = Counter("clips", "Completed clips", ["model"], **make)
        self._failed = Counter("jobs_failed", "Failed jobs by code", ["model", "code"], **make)
        self._frames = Counter("frames", "Frames of completed clips", ["model"], **make)
        self._bytes = Counter("clip_bytes", "Bytes of completed clips", ["model"], **make)
        self._vram = Gauge("vram_peak_bytes", "Peak of the last clip on the card", ["model"], **make)
        self._ram = Gauge("ram_peak_bytes", "Peak resident memory of the worker", ["model"], **make)
        self.workers_replaced = Counter("workers_replaced", "Workers that were replaced", **make)

    def waited(self, model: str, seconds: float) -> None:
        self._wait.labels(model).observe(seconds)

    def completed(self, model: str, facts: dict[str, Any]) -> None:
        """Count a clip with the facts of its Finished message."""
        self._completed.labels(model).inc()
        self._run.labels(model).observe(facts["inference_seconds"])
        for stage, seconds in facts["stage_seconds"].items():
            self._stage.labels(model, stage).observe(seconds)
        self._frames.labels(model).inc(facts["num_frames"])
        self._bytes.labels(model).inc(facts["bytes"])
        self._vram.labels(model).set(facts["vram_peak_bytes"])
        self._ram.labels(model).set(facts["rss_peak_bytes"])

    def failed(self, model: str, code: str) -> None:
        self._failed.labels(model, code).inc()

    def watch(self, read: Callable[[], dict[str, Any]]) -> None:
        """Take gauges from ``read`` at each scrape: counts, free_bytes, ready, per_hour."""
        self.registry.register(_Live(read))

    def text(self) -> bytes:
        return bytes(generate_latest(self.registry))


class _Live:
    """Gauges that are asked for, not kept."""

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        now = self._read()
        jobs = GaugeMetricFamily("yellowsound_jobs", "Jobs by status", labels=["status"])
        for status, count in now["counts"].items():
            jobs.add_metric([status], count)
        yield jobs
        yield GaugeMetricFamily("yellowsound_queue_length", "Waiting jobs", value=now["counts"]["queued"])
        yield GaugeMetricFamily("yellowsound_disk_free_bytes", "Free space for clips", value=now["free_bytes"])
        yield GaugeMetricFamily("yellowsound_workers_ready", "Workers that can serve", value=now["ready"])
        yield GaugeMetricFamily("yellowsound_clips_last_hour", "Clips completed in 3600 s", value=now["per_hour"])


def an_hour_ago() -> float:
    return time.time() - 3600.0
