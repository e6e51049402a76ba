"""What a stranger's tokenizer file cannot do: print, panic past us, or multiply a text."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tokenizers

from edgedec.system.streams import HeldStderr

_MAX_GROWTH = 100
_LOCK = threading.RLock()


@contextmanager
def panics_as(error: type[Exception]) -> Iterator[None]:
    """Turns a panic of the tokenizers library into an ``error`` of one line.

    A panic prints a trace of the library's insides, too. What is printed meanwhile is held back,
    and dropped if there was a panic. One thread at a time is inside.
    """
    with _LOCK:
        stderr = HeldStderr()
        panic: BaseException | None = None
        try:
            yield
        except BaseException as caught:
            if type(caught).__name__ != "PanicException":  # no Exception, and not to be imported
                raise
            panic = caught
        finally:
            stderr.end(is_dropped=panic is not None)
        if panic is not None:
            reason = " ".join(str(panic).split())[:200]
            raise error(
                f"the tokenizer cannot treat this text ({reason}): shorten it, or export the model "
                "again with another tokenizer"
            )


def check_growth(backend: tokenizers.Tokenizer) -> None:
    """Raises a ValueError unless what is made of a text is of its own size, about."""
    for part in (backend.normalizer, backend.decoder):
        if part is not None and (growth := _growth(json.loads(part.__getstate__()))) > _MAX_GROWTH:
            raise ValueError(f"its {part.__class__.__name__} may make texts {growth} times as long")


def _growth(part: Mapping[str, Any]) -> int:
    """Returns how many times as long ``part`` may make a text, at most."""
    growth = 1
    for inner in [*part.get("normalizers", ()), *part.get("decoders", ())]:
        growth = min(growth * _growth(inner), 10**9)
    if part.get("type") == "Replace":
        is_text = bool(part["pattern"].get("String"))  # an expression may match nothing
        growth *= max(1, len(part["content"])) if is_text else 1 + len(part["content"])
    return growth * (1 + len(part.get("prepend", "")))
