"""What `edgedec bench` measures: passes of runtimes, and what the machine can do at most."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from edgedec.apps.measuring.loop import Sample
from edgedec.apps.peers.client import PeerError, Worker
from edgedec.kernels import limits
from edgedec.system.energy import EnergyMeter
from edgedec.system.machine import last_caches
from edgedec.system.memory import memory_bytes

Kind = Literal["pp", "tg", "verify"]

READ = "read_gb_s"
READ_ALONE = "read_alone_gb_s"  # by one thread
MULTIPLY = "int8_gmac_s"

_METHODS: dict[Kind, str] = {"pp": "prefill", "tg": "decode", "verify": "verify"}
_VERIFY_S = 0.2  # passes of one verify measurement fill this
_LIMIT_S = 0.1
_MIN_BUFFER_BYTES = 256 << 20


@dataclass(frozen=True)
class Test:
    """pp: prefill of n tokens; tg: n greedy tokens; verify: one pass over n rows with logits.

    depth: tokens in the KV cache before. n_texts: texts that get n greedy tokens at once; several
    begin with one token each.
    """

    kind: Kind
    n: int
    depth: int = 0
    n_texts: int = 1

    @property
    def name(self) -> str:
        """The field's name: ``pp512``, ``tg128 @ d4096``, ``verify8``, ``tg128 x8``."""
        texts = f" x{self.n_texts}" if self.n_texts > 1 else ""
        return f"{self.kind}{self.n}{texts}" + (f" @ d{self.depth}" if self.depth else "")

    @property
    def n_tokens(self) -> int:
        """Tokens that are read or written."""
        return self.n * self.n_texts

    @property
    def n_positions(self) -> int:
        """Positions of the context this needs."""
        return self.depth + self.n + (1 if self.kind == "tg" else 0)


class PassJob:
    """One test on one runtime. Values are seconds: of the whole prefill, per token, per pass."""

    def __init__(self, worker: Worker, test: Test, meter: EnergyMeter | None) -> None:
        self.worker = worker
        self.test = test
        self._meter = meter

    @property
    def name(self) -> str:
        """Runtime and test, such as `edgedec verify8`."""
        return job_name(self.worker.runtime.name, self.test)

    def measure(self) -> Sample | None:
        """Returns a measurement; None if the runtime cannot do the test, or a peer failed."""
        if self.worker.error is not None:
            return None
        test = self.test
        kind = "decode_texts" if test.n_texts > 1 else _METHODS[test.kind]
        first = test.n_texts if test.n_texts > 1 else test.depth
        request = {"op": "run", "kind": kind, "first": first, "n": test.n}
        started_s = time.process_time()
        if self._meter is not None:
            self._meter.start()
        try:
            answer = self.worker.ask({**request, "min_s": _VERIFY_S})
        except PeerError as error:
            if self.worker.runtime.name == "edgedec":
                raise
            self.worker.error = str(error)
            return None
        joules = self._meter.stop() if self._meter is not None else None
        if answer["seconds"] is None:
            return None
        return Sample(
            value=answer["seconds"] / (test.n_tokens if test.kind == "tg" else 1),
            own_cpu_s=answer["cpu_s"] + time.process_time() - started_s,
            n_involuntary=answer["n_involuntary"],
            joules=None if joules is None or test.kind == "verify" else joules / test.n_tokens,
        )


class LimitJob:
    """A limit of the machine, measured in this process. The value is a rate."""

    def __init__(self, name: str, measure: Callable[[], float]) -> None:
        self.name = name
        self._measure = measure

    def measure(self) -> Sample:
        """Returns the rate that was measured, and the CPU time that took."""
        started_s = time.process_time()
        rate = self._measure()
        return Sample(rate, time.process_time() - started_s)


def job_name(runtime: str, test: Test) -> str:
    """Returns the name of the job of ``test`` on ``runtime``."""
    return f"{runtime} {test.name}"


def limit_jobs(n_threads: int) -> list[LimitJob]:
    """Returns the jobs for reading speed, of one thread, too, and multiplying speed."""
    buffer = np.ones(read_buffer_bytes(), np.uint8)
    return [
        LimitJob(READ, lambda: 1e-9 * limits.read_rate(buffer, n_threads, _LIMIT_S)),
        LimitJob(READ_ALONE, lambda: 1e-9 * limits.read_rate(buffer, 1, _LIMIT_S)),
        LimitJob(MULTIPLY, lambda: 1e-9 * limits.multiply_rate(n_threads, _LIMIT_S)),
    ]


@cache
def read_buffer_bytes() -> int:
    """Returns a size far beyond the last cache: eight times it, if there is memory for that.

    It is decided once, for free memory changes and reports tell what was used.
    """
    total, available = memory_bytes()
    roomy = (available or total) // 8
    last = max((cache.size_bytes for cache in last_caches()), default=0)
    return max(1 << 24, min(max(_MIN_BUFFER_BYTES, 8 * last), roomy)) // 4096 * 4096


def make_tests(
    prompt_tokens: tuple[int, ...],
    new_tokens: tuple[int, ...],
    rows: tuple[int, ...],
    depths: tuple[int, ...],
    texts: tuple[int, ...] = (1,),
) -> list[Test]:
    """Returns every test at every depth; sizes of 0 ask for none.

    texts: numbers of texts that are written at once; one is written at every depth.
    """
    sizes: list[tuple[Kind, int]] = [
        *(("pp", n) for n in prompt_tokens),
        *(("tg", n) for n in new_tokens),
        *(("verify", n) for n in rows),
    ]
    tests = [Test(kind, n, depth) for depth in depths for kind, n in sizes if n]
    return tests + [Test("tg", n, 0, several) for n in new_tokens if n
                    for several in texts if several > 1]  # fmt: skip
