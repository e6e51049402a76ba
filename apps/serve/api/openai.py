"""What the interfaces of OpenAI's kind share: errors, usage, timings, framing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from edgedec.apps.serve.api.endpoint import Document, json_bytes
from edgedec.apps.serve.core import Counts, Done, PromptProgress, ServeError

DONE = b"data: [DONE]\n\n"


def error(problem: ServeError) -> Document:
    """Returns the document of a problem; llama-server's number beside OpenAI's words."""
    details = {"param": None, "code": None, **problem.details}
    if details["code"] is None:
        details["code"] = problem.status
    return {"error": {"message": problem.message, "type": problem.kind, **details}}


def sse(document: Document, event: str = "") -> bytes:
    """Returns ``document`` as one event of a stream."""
    head = f"event: {event}\n".encode() if event else b""
    return b"%bdata: %b\n\n" % (head, json_bytes(document))


def usage(counts: Sequence[Counts], n: int = 1) -> dict[str, Any]:
    """Returns the tokens that answers took. n: those to the same prompt, which counts once."""
    n_prompt = sum(c.n_prompt for c in counts[::n])
    n_new = sum(c.n_new for c in counts)
    n_accepted = sum(c.n_accepted for c in counts)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_new,
        "total_tokens": n_prompt + n_new,
        "prompt_tokens_details": {"cached_tokens": max((c.n_cached for c in counts), default=0)},
        "completion_tokens_details": {
            "reasoning_tokens": sum(c.n_reasoning for c in counts),
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


def progress(read: PromptProgress) -> dict[str, Any]:
    """Returns how much of a prompt is read, in llama-server's field."""
    counts = {"total": read.n_prompt, "cache": read.n_cached, "processed": read.n_read}
    return {"prompt_progress": {**counts, "time_ms": round(read.ms)}}


def _rate(n_tokens: int, ms: float) -> float:
    return 1000.0 * n_tokens / ms if ms > 0 else 0.0


def origin_field(origin: str) -> Document:
    """Returns the field that says who wrote a text; nothing where nobody asked."""
    return {"origin": origin} if origin else {}


class ChunkFramer:
    """Makes the chunks of a streamed answer; what a choice has in them depends on the address."""

    def __init__(self, head: Document, with_usage: bool, n: int) -> None:
        """n: answers to each prompt."""
        self._head = head
        self._opening = b'data: %b,"choices":[' % json_bytes(head)[:-1]  # of each chunk
        self._with_usage = with_usage
        self._n = n
        self._counts: dict[int, Counts] = {}

    def end(self) -> Iterable[bytes]:
        """Returns the usage, if it is wanted, and the mark of the end."""
        if self._with_usage:
            counts = [self._counts[index] for index in sorted(self._counts)]
            yield sse({**self._head, "choices": [], "usage": usage(counts, self._n)})
        yield DONE

    def failed(self, problem: ServeError) -> Iterable[bytes]:
        """Returns a chunk that reports the problem."""
        yield sse(error(problem))

    def chunk(
        self,
        index: int,
        said: Document,
        logprobs: Document | None = None,
        reason: str | None = None,
        more: Document | None = None,
    ) -> bytes:
        """Returns a chunk in which answer ``index`` says something."""
        choice = {"index": index, **said, "logprobs": logprobs, "finish_reason": reason}
        rest = b"," + json_bytes(more)[1:] if more else b"}"
        return b"%b%b]%b\n\n" % (self._opening, json_bytes(choice), rest)

    def last_chunk(self, done: Done, said: Document) -> bytes:
        """Returns the chunk that ends an answer, with its times."""
        self._counts[done.index] = done.counts
        times = {"timings": timings(done.counts)}
        return self.chunk(done.index, said, None, done.reason, times)
