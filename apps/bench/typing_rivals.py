"""What the requests of somebody who types take here, and in other runtimes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from edgedec.apps.bench.keystrokes import Passage
from edgedec.apps.bench.prompts_jobs import Contestant, Method, OutputOptions, Peer, TimedOutput
from edgedec.apps.peers.rivals import Rivals
from edgedec.autocomplete.config import AutocompleteConfig
from edgedec.autocomplete.document import Document
from edgedec.autocomplete.layout import PromptLayout
from edgedec.runtime.engine.engine import Engine

N_TOKENS = 9
"""Of each answer: the first, and a line of usual length."""

Row = dict[str, Any]


def requests_of(
    engine: Engine, config: AutocompleteConfig, passages: Sequence[Passage]
) -> list[list[int]]:
    """Returns the prompts that typing ``passages`` makes, a key at a time; none twice in a row."""
    requests: list[list[int]] = []
    for passage in passages:
        layout = PromptLayout(engine, config)
        for at in range(len(passage.typed)):
            written = passage.before + passage.typed[:at]
            document = Document(written + passage.behind, len(written), passage.name)
            window, _ = layout.split(layout.window(document))
            tokens = layout.prompt(window)
            if tokens and requests[-1:] != [tokens]:
                requests.append(tokens)
    return requests


def compare(
    engine: Engine,
    config: AutocompleteConfig,
    requests: Sequence[Sequence[int]],
    rivals: Rivals,
    n_threads: int,
    others: Mapping[str, Engine],
    report: Callable[[int], None] = lambda n: None,
) -> tuple[list[Row], dict[str, str]]:
    """Returns a row for edgedec, for other engines and each peer, and why peers are missing.

    All answer each request in turn, greedily, with what their KV caches hold of it already.

    Args:
        others: The same model loaded otherwise, by what it is called.
        report: Called with the requests done so far.
    """
    missing: dict[str, str] = {}
    spec = {"threads": n_threads, "context": engine.context, "ids": list(requests[0][:16])}
    options = OutputOptions(ignore_eos=True, is_one_of_many=True)
    with ExitStack() as stack:
        methods = {
            name: Method(config.method, loaded, options, keeps_prompts=True)
            for name, loaded in {"edgedec": engine, **others}.items()
        }
        workers = {
            runtime.name: worker
            for runtime in rivals.runtimes
            for worker in map(stack.enter_context, rivals.start(runtime, spec, missing))
        }
        peers = [
            Peer(mode, workers[mode.runtime.name], keeps_prompts=True)
            for mode in rivals.modes
            if mode.runtime.name in workers
        ]
        contestants: list[Contestant] = [*methods.values(), *peers]
        runs: list[list[TimedOutput]] = [[] for _ in contestants]
        for i, ids in enumerate(requests):
            report(i)
            for contestant, done in zip(contestants, runs, strict=True):
                if (run := contestant.generate(ids, N_TOKENS)) is not None:
                    done.append(run)
        missing |= {peer.name: peer.error for peer in peers if peer.error is not None}
    names = [*methods, *(peer.name for peer in peers)]
    rows = [_row(n, done, runs[0]) for n, done in zip(names, runs, strict=True)]
    return [row for row in rows if row["name"] not in missing], missing


def _row(name: str, runs: Sequence[TimedOutput], our_runs: Sequence[TimedOutput]) -> Row:
    first = [1000 * run.first_s for run in runs] or [float("nan")]
    whole = [1000 * run.total_s for run in runs] or [float("nan")]
    same = [a.token_ids == b.token_ids for a, b in zip(runs, our_runs, strict=False)]
    own_p50 = np.median([1000 * run.first_s for run in our_runs])
    own_whole_p50 = np.median([1000 * run.total_s for run in our_runs])
    return {
        "name": name,
        "n_requests": len(runs),
        "first_ms_p50": float(np.median(first)),
        "first_ms_p95": float(np.percentile(first, 95)),
        "first_times_ours": float(np.median(first) / own_p50),
        "line_ms_p50": float(np.median(whole)),
        "line_ms_p95": float(np.percentile(whole, 95)),
        "line_times_ours": float(np.median(whole) / own_whole_p50),
        "same_share": float(np.mean(same)) if same else None,
    }
