"""What the interfaces of OpenAI's kind share: errors, usage, timings, framing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from edgedec.apps.serve.core import Counts, ServeError
from edgedec.apps.serve.surfaces.surface import Document

DONE = b"data: [DONE]\n\n"


def error(problem: ServeError) -> Document:
    """Returns the document of a problem; llama-server's number beside OpenAI's words."""
    details = {"param": None, "code": None, **problem.details}
    if details["code"] is None:
        details["code"] = problem.status
    return {"error": {"message": problem.message, "type": problem.kind, **details}}


def sse(document: Document, event: str = "") -> bytes:
    """Returns ``document`` as one event of a stream."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {text}\n\n".encode("utf-8", "replace")


def usage(counts: Sequence[Counts]) -> dict[str, Any]:
    """Returns the tokens that an answer took; several answers share their prompt."""
    n_prompt = counts[0].n_prompt if counts else 0
    n_new = sum(c.n_new for c in counts)
    n_accepted = sum(c.n_accepted for c in counts)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_new,
        "total_tokens": n_prompt + n_new,
        "prompt_tokens_details": {"cached_tokens": max((c.n_cached for c in counts), default=0)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": n_accepted,
            "rejected_prediction_tokens": sum(c.n_drafted for c in counts) - n_accepted,
        },
    }


def timings(counts: Counts) -> dict[str, Any]:
    """Returns times of an answer in the form that clients of llama-server read."""
    n_read = counts.n_prompt - counts.n_cached
    n_later = max(0, counts.n_new - 1)
    return {
        "cache_n": counts.n_cached,
        "prompt_n": n_read,
        "prompt_ms": counts.prompt_ms,
        "prompt_per_token_ms": counts.prompt_ms / max(1, n_read),
        "prompt_per_second": _rate(n_read, counts.prompt_ms),
        "predicted_n": counts.n_new,
        "predicted_ms": counts.decode_ms,
        "predicted_per_token_ms": counts.decode_ms / max(1, n_later),
        "predicted_per_second": _rate(n_later, counts.decode_ms),
        "draft_n": counts.n_drafted,
        "draft_n_accepted": counts.n_accepted,
        "method": counts.method,
        "lossless": counts.lossless,
    }


def _rate(n_tokens: int, ms: float) -> float:
    return 1000.0 * n_tokens / ms if ms > 0 else 0.0
