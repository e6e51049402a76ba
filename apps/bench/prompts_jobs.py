"""What `edgedec bench --prompts` compares: decoding methods, and peers in their modes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgedec.apps.peers import Mode
from edgedec.apps.peers.client import PeerError, Worker
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.drafting.stats import DecodeStats
from edgedec.runtime.engine.engine import Engine


@dataclass(frozen=True)
class TimedOutput:
    """One output of one contestant.

    first_s: from the request to the first token. rest_s: from there to the last one.
    own_cpu_s: CPU time the measured processes used.
    stats: what a method of ours counted; None for peers.
    """

    token_ids: tuple[int, ...]
    first_s: float
    rest_s: float
    own_cpu_s: float
    stats: DecodeStats | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Rate of decoding, prefill excluded; None for a single token."""
        n_later = len(self.token_ids) - 1
        return n_later / self.rest_s if n_later > 0 and self.rest_s > 0 else None

    @property
    def total_s(self) -> float:
        """Time of the whole request, prefill included. Units: seconds."""
        return self.first_s + self.rest_s


@dataclass(frozen=True)
class OutputOptions:
    """How methods are to generate: the same for all of them."""

    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    seed: int = 0
    ignore_eos: bool = False
    is_one_of_many: bool = False

    def request(self, method: str, n_tokens: int, prediction: str = "") -> GenerationConfig:
        """Returns the request for at most ``n_tokens`` by ``method``."""
        return GenerationConfig(
            max_new_tokens=n_tokens,
            sampling=self.sampling,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
            is_one_of_many=self.is_one_of_many,
            method=method,
            prediction=prediction,
        )


class Contestant(Protocol):
    """Something that continues prompts."""

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def facts(self) -> dict[str, Any]:
        """What it is, JSON-ready."""

    def forget(self) -> None:
        """Drops what it learned from earlier prompts."""

    def generate(
        self, ids: Sequence[int], n_tokens: int, prediction: str = ""
    ) -> TimedOutput | None:
        """Returns an output of at most ``n_tokens``, None if it cannot (any more)."""


class Method:
    """A decoding method in an engine of its own, so that it learns from its own runs only.

    Every run begins with an empty KV cache, so that the prompt is computed anew each time, unless
    it ``keeps_prompts``.
    """

    def __init__(
        self, name: str, engine: Engine, request: OutputOptions, keeps_prompts: bool = False
    ) -> None:
        self.name = name
        self._engine = engine
        self._output_options = request
        self._keeps_prompts = keeps_prompts
        self._is_lossless: bool | str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Name and runtime; whether it is lossless is known after the first run."""
        return {"name": self.name, "runtime": "edgedec", "lossless": self._is_lossless}

    def forget(self) -> None:
        """Drops what its drafters learned, and their KV caches."""
        self._engine.forget_drafts()

    def generate(self, ids: Sequence[int], n_tokens: int, prediction: str = "") -> TimedOutput:
        """Returns an output of at most ``n_tokens``."""
        if not self._keeps_prompts:
            self._engine.forget_prompts()
        request = self._output_options.request(self.name, n_tokens, prediction)
        started_s = time.process_time()
        result = self._engine.generate(list(ids), request)
        self._is_lossless = result.lossless
        return TimedOutput(
            token_ids=result.token_ids,
            first_s=result.ttft_ms / 1000,
            rest_s=result.tpot_ms / 1000 * (result.n_new_tokens - 1),
            own_cpu_s=time.process_time() - started_s,
            stats=result.stats,
        )


class Peer:
    """A peer in one of its modes, greedy. It ignores end tokens, to generate as many as asked.

    keeps_prompts: what its KV cache holds of a prompt already is not computed again.
    """

    def __init__(self, mode: Mode, worker: Worker, keeps_prompts: bool = False) -> None:
        self.name = mode.name
        self._mode = mode
        self._worker = worker
        self._op = "go_on" if keeps_prompts else "generate"
        self.error: str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Name, runtime, how its model was loaded, and how it drafts."""
        known = self._worker.facts
        how = known.get("modes", {}).get(self._mode.kind)
        if how is not None:
            how = f"{how}; {self._mode.n_drafted or known['n_drafted']} tokens drafted at a time"
        facts = {key: known.get(key) for key in ("through", "format", "options", "system")}
        return {"name": self.name, "runtime": self._mode.runtime.name, **facts, "mode": how}

    def forget(self) -> None:
        """Nothing is learned: drafts come from the text at hand, or from a model."""

    def generate(
        self, ids: Sequence[int], n_tokens: int, prediction: str = ""
    ) -> TimedOutput | None:
        """Returns an output of ``n_tokens``; None from the first error on, which `error` keeps.

        Peers read no prediction.
        """
        if self.error is not None:
            return None
        request = {"op": self._op, "ids": list(ids), "n": n_tokens}
        how = {"mode": self._mode.kind, "n_drafted": self._mode.n_drafted}
        started_s = time.process_time()
        try:
            answer = self._worker.ask({**request, **how})
        except PeerError as error:
            self.error = str(error)
            return None
        return TimedOutput(
            token_ids=tuple(answer["ids"]),
            first_s=answer["prefill_s"],
            rest_s=answer["decode_s"],
            own_cpu_s=answer["cpu_s"] + time.process_time() - started_s,
        )


def parse_methods(text: str) -> tuple[str, ...]:
    """Returns the methods written as ``plain,auto``, plain first: all are compared with it."""
    names = dict.fromkeys(["plain", *(name.strip() for name in text.split(","))])
    if "" in names:
        raise ConfigError(f"--methods got {text!r}, expected names such as plain,auto,lookup")
    return tuple(names)
