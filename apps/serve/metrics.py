"""Counters and histograms of the server, in the text form that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from edgedec.apps.serve.records import RequestRecord

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 3600)


class Metrics:
    """What happened since the server started. Names are llama-server's where it has them."""

    def __init__(self, models: Iterable[str]) -> None:
        """models: names of the offered ones; they are reported from the start."""
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each
        self._registry = CollectorRegistry()
        of_end = ("model", "status")
        self._requests = self._counter("requests_total", "Requests that have ended.", of_end)
        self._first_s = self._histogram("first_token_seconds", "Time until first tokens.")
        self._total_s = self._histogram("request_seconds", "Time until requests have ended.")
        self._by_model = {
            "n_computed": self._counter(
                "prompt_tokens_total", "Tokens of prompts, those computed before left out."
            ),
            "n_cached": self._counter(
                "prompt_cached_tokens_total", "Tokens of prompts that were computed before."
            ),
            "prompt_s": self._counter("prompt_seconds_total", "Time until first tokens."),
            "n_new": self._counter("tokens_predicted_total", "Tokens of answers."),
            "decode_s": self._counter(
                "tokens_predicted_seconds_total", "Time from first tokens to last ones."
            ),
            "n_drafted": self._counter("tokens_drafted_total", "Drafted tokens that were checked."),
            "n_accepted": self._counter("tokens_accepted_total", "Drafted tokens that were kept."),
        }
        for counter in self._by_model.values():
            for model in models:
                counter.labels(model)
        self._n_running = self._gauge("requests_processing", "Requests being answered.")
        self._n_loaded = self._gauge("models_loaded", "Models in memory.")

    def count(self, record: RequestRecord) -> None:
        """Adds a request that has ended."""
        self._requests.labels(record.model, record.status).inc()
        if not record.model:
            return
        self._total_s.labels(record.model, record.status).observe(record.total_s)
        if record.first_s is not None:
            self._first_s.labels(record.model, record.status).observe(record.first_s)
        for name, counter in self._by_model.items():
            counter.labels(record.model).inc(getattr(record, name))

    def text(self, n_running: int, n_loaded: int) -> str:
        """Returns all of it, with how many requests run and how many models are loaded."""
        self._n_running.set(n_running)
        self._n_loaded.set(n_loaded)
        return generate_latest(self._registry).decode()

    def _counter(self, name: str, text: str, labels: Iterable[str] = ("model",)) -> Counter:
        return Counter(f"edgedec:{name}", text, tuple(labels), registry=self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"edgedec:{name}", text, registry=self._registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(
            f"edgedec:{name}",
            text,
            ("model", "status"),
            registry=self._registry,
            buckets=_BOUNDS_S,
        )
