"""Counters of the server, in the text form that Prometheus reads."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from edgedec.apps.serve.core import Counts


def _counter(text: str) -> Any:
    return field(default=0.0, metadata={"help": text})


@dataclass
class Metrics:
    """What happened since the server started. Names are llama-server's where it has them."""

    requests_total: float = _counter("Requests for answers.")
    requests_failed_total: float = _counter("Requests that ended with an error.")
    requests_cancelled_total: float = _counter("Requests whose client went away.")
    prompt_tokens_total: float = _counter("Tokens of prompts, those computed before left out.")
    prompt_cached_tokens_total: float = _counter("Tokens of prompts that were computed before.")
    prompt_seconds_total: float = _counter("Time until first tokens.")
    tokens_predicted_total: float = _counter("Tokens of answers.")
    tokens_predicted_seconds_total: float = _counter("Time from first tokens to last ones.")
    tokens_drafted_total: float = _counter("Drafted tokens that were checked.")
    tokens_accepted_total: float = _counter("Drafted tokens that were kept.")

    def count(self, counts: Counts) -> None:
        """Adds what an answer took."""
        self.prompt_tokens_total += counts.n_prompt - counts.n_cached
        self.prompt_cached_tokens_total += counts.n_cached
        self.prompt_seconds_total += counts.prompt_ms / 1000
        self.tokens_predicted_total += counts.n_new
        self.tokens_predicted_seconds_total += counts.decode_ms / 1000
        self.tokens_drafted_total += counts.n_drafted
        self.tokens_accepted_total += counts.n_accepted

    def text(self, n_running: int, n_loaded: int) -> str:
        """Returns all of it, with how many requests run and how many models are loaded."""
        lines: list[str] = []
        for one in fields(self):
            lines += _lines(one.name, "counter", one.metadata["help"], getattr(self, one.name))
        lines += _lines("requests_processing", "gauge", "Requests being answered.", n_running)
        lines += _lines("models_loaded", "gauge", "Models in memory.", n_loaded)
        return "".join(f"{line}\n" for line in lines)


def _lines(name: str, kind: str, text: str, value: float) -> list[str]:
    full = f"edgedec:{name}"
    return [f"# HELP {full} {text}", f"# TYPE {full} {kind}", f"{full} {float(value)!r}"]
