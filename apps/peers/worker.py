"""Serves one runtime to `edgedec bench`: a request per line of JSON in, an answer per line out.

Run as `python worker.py ADAPTER.py USAGE.py`; the second is `system/usage.py`. An adapter defines
`open_model(spec)`, which returns an object with the dict `facts` (what was loaded), and three
methods that return seconds, or None if the runtime cannot do it: `prefill(depth, n)` for n tokens
after depth others; `decode(depth, n)` for n greedy tokens, one at a time; `verify(depth, m)` for a
pass over m tokens with logits of every row. Some also define `decode_texts(n_texts, n)`, for n
greedy tokens of each of several texts at once, which begin with one token each.
Peers also define `generate(ids, n, mode, n_drafted)`. It returns n greedy tokens after the prompt
`ids`, the seconds up to the first, and the seconds for the others. No part of the prompt may be in
the KV cache before, and end tokens are tokens like others. `n_drafted`, tokens drafted at a time,
may be None; the fact of that name is then used, and the fact `modes` says how each mode drafts.
Where a KV cache may keep what an earlier prompt left, `go_on` does the same and computes only what
is new.
Works under any Python from 3.10 on, with nothing but the runtime installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

_MIN_PASSES = 3


def main(adapter: Path, usage: Any) -> None:
    """Answers requests until standard input ends. usage: a module."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C ends
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a runtime prints must not end up among the answers
    model: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["op"] == "open":
                started_s = time.perf_counter()
                model = _load(adapter).open_model(request["spec"])
                opened_s = time.perf_counter() - started_s
                model.decode(0, 1)
                answer: dict[str, Any] = {"facts": model.facts, "load_s": opened_s}
            elif request["op"] == "run":
                answer = _run(model, request, usage)
            elif request["op"] in ("generate", "go_on"):
                answer = _generate(getattr(model, request["op"]), request, usage)
            else:
                answer = {"peak_rss_mb": usage.peak_rss_mb()}
        except Exception as error:
            text = " ".join(str(error).split())
            answer = {"error": f"{type(error).__name__}: {text}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _run(model: Any, request: dict[str, Any], usage: Any) -> dict[str, Any]:
    """Returns seconds per unit of work and what the whole run took of the CPU."""
    before = _used(usage)
    method, first, n = getattr(model, request["kind"], None), request["first"], request["n"]
    if method is None:
        seconds = None
    elif request["kind"] == "verify":
        seconds = _repeat(lambda: method(first, n), request["min_s"])
    else:
        seconds = method(first, n)
    return {"seconds": seconds, **_used_since(before, usage)}


def _generate(generate: Any, request: dict[str, Any], usage: Any) -> dict[str, Any]:
    """Returns the tokens, the seconds before and after the first, and the CPU time taken."""
    before = _used(usage)
    tokens, prefill_s, decode_s = generate(
        request["ids"], request["n"], request["mode"], request["n_drafted"]
    )
    times = {"prefill_s": prefill_s, "decode_s": decode_s}
    return {"ids": [int(token) for token in tokens], **times, **_used_since(before, usage)}


def _used(usage: Any) -> tuple[float, int]:
    return time.process_time(), usage.involuntary_switches()


def _used_since(before: tuple[float, int], usage: Any) -> dict[str, Any]:
    cpu_s, n_involuntary = _used(usage)
    return {"cpu_s": cpu_s - before[0], "n_involuntary": n_involuntary - before[1]}


def _repeat(run: Any, min_s: float) -> float | None:
    """Returns the median seconds of as many passes as fill ``min_s``."""
    passes: list[float] = []
    while len(passes) < _MIN_PASSES or sum(passes) < min_s:
        seconds = run()
        if seconds is None:
            return None
        passes.append(seconds)
    return sorted(passes)[len(passes) // 2]


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    # The files of this folder are no modules of the runtime's Python. It need not be in front:
    # an embedded Python does not look into the folder of a script.
    folder = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != folder]
    main(Path(sys.argv[1]), _load(Path(sys.argv[2])))
