"""Replays the rounds of `auto` along recorded texts, on machines that are tables of costs.

    python tools/draft_replay/replay.py [--tables avx2-fast-memory,..] [--sets draft,..]
        [--texts 20] [--chosen-by] [--fresh] [--hindsight] [--sweep] [--json FILE]

No model runs: the runtime's own planner, drafters and verification do, and what the models would
say is looked up in `traces/`. Drafts beyond the first wrong token get the rows of that place, and
are never accepted. Times are added up from a table; the rule sees them with noise, spikes, and in
one text of four twice as long from the middle on. Every other text is held out for the report;
--chosen-by replays those that constants were chosen by. --sweep replays these with each constant of
`draft_length.py` changed alone. --hindsight also plays fixed choices, and keeps the best of each
text, which no rule can know.

Each line: mean and worst of plain decoding's time over the rule's, and tokens a round.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from traces import Trace, load

from edgedec.models.graph import Capabilities
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.decoding import auto_planner, draft_length
from edgedec.runtime.decoding.auto_planner import AutoPlanner
from edgedec.runtime.decoding.busy_clock import BusyClock
from edgedec.runtime.decoding.cost_book import TARGET, CostBook
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.planner import FixedPlanner, Planner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.decoding.strategy import DecodeState
from edgedec.runtime.drafting.draft_passes import DraftPasses
from edgedec.runtime.drafting.drafter import Budget, DraftPrompt
from edgedec.runtime.drafting.drafters.draft.tree_drafting import TreeDrafter
from edgedec.runtime.drafting.drafters.lookup import PromptLookup
from edgedec.runtime.drafting.drafters.mtp import Mtp
from edgedec.runtime.drafting.drafters.recycling import TokenRecycling
from edgedec.runtime.drafting.drafters.trigram import Trigrams
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import Pass, Passes, T
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.rows import MtpRows, OtherTexts, Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.token_map import TokenMap

HERE = Path(__file__).parent
MTP_SHARE = 0.04
SETS = {
    "free": ("smollm2-135m", 0.13, ()),
    "mtp": ("smollm2-135m", 0.13, ("mtp",)),
    "free-0.5b": ("qwen2.5-coder-0.5b", 0.38, ()),
    "free-1.5b": ("qwen2.5-coder-1.5b", 1.0, ()),
    "draft": ("qwen2.5-coder-1.5b", 1.0, ("draft",)),
}
"""Traces, a step's time over that of the table, and drafters beside those of the text."""

FIXED = (1, 2, 4, 8)
"""Drafted tokens of each round, of the choices that hindsight has."""

SWEEP: dict[str, tuple[float, ...]] = {
    "OVERDRAFT": (0.005, 0.015, 0.02),
    "STAKE": (0.1, 0.2, 0.3, 1.0),
    "ASKING_STAKE": (0.1, 0.3, 0.5),
    "MAX_CREDIT": (0.0, 0.005, 0.03),
    "MEMORY": (0.9, 0.93, 0.98),
    "PRIOR": (0.6, 0.8),
    "LOOK": (0.005, 0.02),
    "PURSE": (1.0, 4.0),
    "MAX_NODES": (7, 11),
    "HORIZON": (32, 128),
}
"""What constants of the rule are changed to."""

_VOCABULARY = 152_000
_N_FIRST = 32  # tokens by which the place of a text is found


@dataclass(frozen=True)
class Machine:
    """What passes and asking cost; fixed choices ask each round. Units: ms."""

    name: str
    target: dict[int, float]
    draft: dict[int, float]
    ask_ms: float


def machines(scale: float) -> Iterator[Machine]:
    """Yields the tables for a model whose step takes ``scale`` times as long."""
    stored = json.loads((HERE / "cost_tables.json").read_text(encoding="utf-8"))
    for name, table in stored["tables"].items():
        ms = [scale * table["step_ms"] * ratio for ratio in table["ratios"]]
        target = dict(zip(stored["rows"], ms, strict=True))
        draft = {rows: table["draft"] * cost for rows, cost in target.items()}
        yield Machine(name, target, draft, table["ask_ms"])


@dataclass
class Time:
    """Virtual time. ms: as costs say. seen_ms: with noise, as the rule sees it."""

    rng: np.random.Generator
    ms: float = 0.0
    seen_ms: float = 0.0
    scale: float = 1.0

    def passes(self, ms: float) -> float:
        """Lets a pass of ``ms`` go by; returns how long it seems to take."""
        spike = 1 + self.rng.exponential(1.0) if self.rng.random() < 0.01 else 1.0
        seen_ms = ms * spike * math.exp(0.02 * self.rng.standard_normal()) * self.scale
        self.ms += ms * self.scale
        self.seen_ms += seen_ms
        return seen_ms

    def asks(self, ms: float) -> None:
        """Lets the time go by that asking a drafter takes."""
        self.ms += ms
        self.seen_ms += ms


class VirtualClock(BusyClock):
    """The clock of a request in virtual time."""

    def __init__(self, time: Time) -> None:
        super().__init__()
        self._time = time

    def now_s(self) -> float:
        """Returns the replayed time. Units: seconds."""
        return self._time.seen_ms / 1000 - self._waited_s

    def kept(self, passes: Passes[T]) -> Passes[T]:
        """Returns the result of a step; while others compute, only the step's passes count."""
        rows: Any = None
        while True:
            try:
                pass_ = passes.send(rows)
            except StopIteration as end:
                result: T = end.value
                return result
            before_ms = self._time.seen_ms
            rows = yield pass_
            self.skip((self._time.seen_ms - before_ms) / 1000)
            self.add(rows.ms)


class RecordedState:
    """The state of a sequence that computes nothing."""

    look_back = 0
    checkpoints = ()

    def reachable(self, n_tokens: int) -> int:
        return n_tokens

    resting = reachable

    def nothing(self, *args: object) -> None:
        """Does nothing: a replay computes no passes."""

    reserve = commit = truncate = close = nothing


class RecordedModel:
    """A `Model` whose rows are those of a trace. ``is_draft``: of its draft model."""

    def __init__(self, is_draft: bool, mtp: int = 0) -> None:
        self.is_draft = is_draft
        self.vocab_size = self.n_token_ids = _VOCABULARY
        self.capabilities = Capabilities(trees=True, mtp=mtp)
        self.is_movable = self.is_closed = False
        self.n_layers = 1

    def new_state(self, context: int) -> RecordedState:
        return RecordedState()

    def rows(self, trace: Trace, pass_: Pass) -> Rows:
        """Returns the asked rows of a pass."""
        tokens = trace.tokens.tolist()
        places = [self._place(trace, tokens, pass_, row) for row in pass_.logit_rows]
        ids, logs = trace.target_ids, trace.target_logs
        if self.is_draft:
            ids, logs = trace.draft_ids, trace.draft_logs
        most = len(ids) - 1
        at = [min(max(place, 0), most) for place, _ in places]
        stats = _stats(ids[at], logs[at])
        if not self.is_draft:  # of what follows a wrong token nothing is known
            stats.top_ids[[not is_true for _, is_true in places]] = -1
        mtp = None
        if pass_.with_mtp and len(trace.mtp_ids):
            padding = ((0, 0), (0, 0), (0, 8 - trace.mtp_ids.shape[2]))
            mtp = MtpRows(
                np.pad(trace.mtp_ids[at].astype(np.int64), padding, constant_values=1),
                np.pad(trace.mtp_logs[at].astype(np.float32), padding, constant_values=-30.0),
            )
        return Rows(np.zeros((0, 1), np.float32), {}, stats, mtp=mtp)

    def _place(self, trace: Trace, tokens: list[int], pass_: Pass, row: int) -> tuple[int, bool]:
        """Returns which row of the trace that is, and whether the text goes on that way."""
        branch: list[int] = []
        while row >= 0:
            branch.append(pass_.tree.tokens[row])
            row = pass_.tree.parents[row]
        n_past = len(pass_.sequence.tokens)
        if self.is_draft:
            n_past += self._n_left_out(tokens, [*pass_.sequence.tokens, *branch[::-1]])
        n_before = n_past + len(branch)
        is_true = branch[::-1] == tokens[n_past:n_before]
        return n_before - trace.n_prompt, is_true

    def _n_left_out(self, tokens: list[int], text: list[int]) -> int:
        """Returns where a text begins that is read from near the end on only."""
        first = text[:_N_FIRST]
        if tokens[: len(first)] == first:
            return 0
        starts = range(len(tokens) - len(first) + 1)
        return next((i for i in starts if tokens[i : i + len(first)] == first), 0)


def _stats(ids: Any, logs: Any) -> RowStats:
    n_rows, n_kept = ids.shape
    top_ids = np.full((n_rows, 8), -1, np.int64)
    top_logits = np.full((n_rows, 8), -np.inf, np.float32)
    top_ids[:, :n_kept], top_logits[:, :n_kept] = ids, logs
    zeros = np.zeros(n_rows, np.float32)
    return RowStats(top_ids[:, 0].copy(), zeros, zeros, top_ids, top_logits)


class KnownCosts(CostBook):
    """The costs of a machine, as earlier runs kept them."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._tables = {
            TARGET: CostTable(dict(machine.target)),
            "draft": CostTable(dict(machine.draft)),
        }


def guessed_costs(machine: Machine) -> CostBook:
    """Returns the costs of a machine that nothing has run on."""
    return CostBook(shares={"draft": machine.draft[1] / machine.target[1]})


class RecordedDrafter(TreeDrafter):
    """The draft model of a trace."""

    def __init__(self) -> None:
        super().__init__("draft", TokenMap.same(_VOCABULARY, _VOCABULARY), _VOCABULARY)
        self.model = RecordedModel(is_draft=True)

    def open(self, prompt: DraftPrompt, text: Sequence[int]) -> DraftPasses:
        return DraftPasses(TokenSequence(self.model, 4096))  # type: ignore[arg-type]

    def close(self) -> None: ...


class _Timed:
    """A part of a request of free drafters, which takes time when asked."""

    def __init__(self, part: Any, time: Time, ms: float) -> None:
        self._part, self._time, self._ms = part, time, ms

    def __getattr__(self, name: str) -> Any:
        return getattr(self._part, name)

    def propose(self, *args: Any, **options: Any) -> Any:
        self._time.asks(self._ms / 2)
        return self._part.propose(*args, **options)

    def observe(self, *args: Any) -> None:
        self._time.asks(self._ms / 2)
        self._part.observe(*args)


@dataclass
class Replay:
    """One set of drafters on one machine: an engine that plays texts one after the other.

    mtp_share: of a pass over one row, what light heads take. n_beside: rows that go through the
    model beside each row, for them. is_alone: no drafter is asked but those of ``drafters``.
    """

    machine: Machine
    drafters: tuple[str, ...] = ()
    make: Any = AutoPlanner
    seed: int = 0
    costs: Any = KnownCosts
    mtp_share: float = MTP_SHARE
    n_beside: int = 0
    is_alone: bool = False
    n_rounds: int = 0
    n_tokens: int = 0
    _n_written: int = field(default=0, init=False)  # tokens, of the latest text
    _time: Time = field(init=False)
    _is_timed: bool = field(init=False)  # asking free drafters takes time by itself

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self._time = Time(self._rng)
        free: list[Any] = []
        if not self.is_alone:
            free = [PromptLookup(), Trigrams(), TokenRecycling()]
        share = 0.0
        if "mtp" in self.drafters:
            free.append(Mtp(is_bound_to_likeliest=True))
            share = self.mtp_share + self._beside_ms(1) / self.machine.target[1]
        models = {"draft": RecordedDrafter()} if "draft" in self.drafters else {}
        planner: Planner = self.make(free, self.costs(self.machine), models, share)
        team: Any = getattr(planner, "team", None)
        if self.is_alone:  # what is not compiled is asked by itself
            (team,) = free
        self._is_timed = team is not None
        if team is not None:
            begin = team.begin
            team.begin = lambda prompt: _Timed(begin(prompt), self._time, self.machine.ask_ms)
        self._with_mtp = share > 0
        self._method = Speculative(planner, with_mtp=self._with_mtp)
        self._target = RecordedModel(is_draft=False, mtp=2 if share else 0)
        self._costs = CostTable(dict(self.machine.target))
        self._draft_costs = CostTable(dict(self.machine.draft))

    def play(self, trace: Trace, does_drift: bool = False) -> float:
        """Returns plain decoding's time over the rule's, for a text."""
        if not len(trace):
            return 1.0
        plain_ms, started_ms = 0.0, self._time.ms
        text = self._text(trace)
        n_half = len(trace) / 2
        pass_ = next(text, None)
        while pass_ is not None:
            n_before = self.n_tokens
            try:
                pass_ = text.send(self._answer(pass_, trace))
            except StopIteration:
                pass_ = None
            plain_ms += (self.n_tokens - n_before) * self._costs.ms(1) * self._time.scale
            if does_drift and self._n_written > n_half:
                self._time.scale = 2.0
        self._time.scale = 1.0
        taken_ms = self._time.ms - started_ms
        return plain_ms / taken_ms if taken_ms else 1.0

    def play_at_once(self, traces: Sequence[Trace], n_at_once: int) -> float:
        """Returns plain decoding's time over the rule's, for texts that share passes.

        So many are under way until none is left: where one ends, the next begins.
        """
        started_ms = self._time.ms
        for shared in at_once([self._text(trace) for trace in traces], traces, n_at_once):
            n_rows = sum(pass_.n_rows for pass_, _ in shared)
            ms = self._costs.ms(n_rows)
            n_longest = max(pass_.n_rows for pass_, _ in shared)
            if any(pass_.with_mtp for pass_, _ in shared):
                ms += self.mtp_share * self._costs.ms(1) + self._beside_ms(n_rows)
            seen_ms = self._time.passes(ms)
            for i, (pass_, trace) in enumerate(shared):
                rows = self._target.rows(trace, pass_)
                rows.ms = seen_ms
                rows.company = OtherTexts(len(shared) - 1, n_rows - pass_.n_rows, n_longest)
                shared[i] = _done(pass_, rows)
        taken_ms = self._time.ms - started_ms
        plain_ms = 0.0
        plain = [(at for at in range(len(trace) - 1)) for trace in traces]
        for shared in at_once(plain, traces, n_at_once):
            plain_ms += self._costs.ms(len(shared))
        return plain_ms / taken_ms

    def _text(self, trace: Trace) -> Passes[None]:
        """Wants the passes of a text, whose prompt is known."""
        sequence = TokenSequence(self._target, 4096)  # type: ignore[arg-type]
        prompt, n_new = trace.tokens[: trace.n_prompt].tolist(), len(trace)
        state = DecodeState.start(sequence, prompt, GenerationConfig(max_new_tokens=n_new))
        state.clock = clock = VirtualClock(self._time)
        before = Pass(sequence, TokenTree.chain(prompt), [len(prompt) - 1])
        _done(before, Rows(np.zeros((0, 1), np.float32)))
        sequence.commit(range(len(prompt)))
        last = TokenTree((prompt[-1],), (-1,))
        sequence.truncate(len(prompt) - 1)
        state.rows = self._target.rows(trace, Pass(sequence, last, (0,), with_mtp=True))
        sequence = state.sequence
        _done(Pass(sequence, last, (0,)), Rows(np.zeros((0, 1), np.float32)))
        sequence.commit((0,))
        decoding = self._method.begin(state, {})
        noise = Noise(0)
        while state.n_left > 0:
            n_before = len(state.tokens)
            result = yield from clock.kept(decoding.step(noise))
            for token in result.tokens[: state.n_left]:
                state.append(token)
            self._n_written = len(state.tokens) - trace.n_prompt
            if n_before > trace.n_prompt:  # prefill gave the first
                self.n_rounds += 1
                self.n_tokens += len(state.tokens) - n_before
        assert state.tokens == trace.tokens.tolist(), "the text changed"
        decoding.end()

    def _beside_ms(self, n_rows: int) -> float:
        """Returns what ``n_rows`` rows take longer because of those beside them."""
        costs = CostTable(dict(self.machine.target))
        return costs.ms(n_rows * (1 + self.n_beside)) - costs.ms(n_rows)

    def _answer(self, pass_: Pass, trace: Trace) -> Rows:
        model: Any = pass_.sequence.model
        rows: Rows = model.rows(trace, pass_)
        costs = self._draft_costs if model.is_draft else self._costs
        ms = costs.ms(pass_.n_rows)
        if pass_.with_mtp:
            ms += self.mtp_share * costs.ms(1) + self._beside_ms(pass_.n_rows)
        rows.ms = self._time.passes(ms)
        if not (model.is_draft or self._is_timed):
            self._time.asks(self.machine.ask_ms)
        return _done(pass_, rows)


def at_once(
    texts: Sequence[Generator[Any, Any, None]], traces: Sequence[Trace], n_at_once: int
) -> Iterator[list[Any]]:
    """Yields the passes of the texts under way, with their traces; takes rows in their places."""
    waiting = list(zip(texts, traces, strict=True))[::-1]
    running: list[tuple[Generator[Any, Any, None], Trace]] = []
    shared: list[Any] = []
    while waiting or running:
        begun = list(zip(running, shared, strict=True))
        running, shared = [], []
        while len(running) < n_at_once and (begun or waiting):
            (text, trace), rows = begun.pop(0) if begun else (waiting.pop(), None)
            try:
                shared.append((text.send(rows), trace))
            except StopIteration:
                continue
            running.append((text, trace))
        if shared:
            yield shared


def _done(pass_: Pass, rows: Rows) -> Rows:
    pass_.sequence.begin(pass_)
    pass_.sequence.finish(pass_)
    return rows


def report(
    tables: Sequence[str],
    sets: Sequence[str],
    n_texts: int,
    is_held_out: bool,
    make: Any,
    n_at_once: int = 1,
    costs: Any = KnownCosts,
) -> Iterator[dict[str, Any]]:
    """Yields a row for each machine and set of drafters."""
    for name in sets:
        traces_name, scale, drafters = SETS[name]
        path = HERE / "traces" / f"{traces_name}.npz"
        if not path.exists():
            continue
        traces = [t for t in load(path) if t.is_held_out == is_held_out][:n_texts]
        if not traces:
            continue
        for machine in machines(scale):
            if tables and machine.name not in tables:
                continue
            engine = Replay(machine, drafters, make, costs=costs)
            if n_at_once > 1:
                gains = [engine.play_at_once(traces, n_at_once)]
            else:
                gains = [engine.play(trace, i % 4 == 3) for i, trace in enumerate(traces)]
            yield {
                "set": name,
                "table": machine.name,
                "mean": len(gains) / sum(1 / gain for gain in gains),
                "worst": min(gains),
                "tokens_per_round": engine.n_tokens / engine.n_rounds,
                "n_below": sum(gain < 0.97 for gain in gains),
                "texts": len(gains),
            }


def fixed(n_nodes: int) -> Any:
    """Returns what makes planners that draft so many tokens each round."""

    def make(free: Any, costs: CostBook, models: Any, share: float) -> FixedPlanner:
        model = next(iter(models.values()), None)
        return FixedPlanner(free, Budget(n_nodes, n_nodes), "fixed", model)

    return make


def hindsight(name: str, table: str, n_texts: int, is_held_out: bool) -> float:
    """Returns the mean of plain decoding's time over that of the best fixed choice of each text."""
    traces_name, scale, drafters = SETS[name]
    traces = [
        t for t in load(HERE / "traces" / f"{traces_name}.npz") if t.is_held_out == is_held_out
    ]
    machine = next(machine for machine in machines(scale) if machine.name == table)
    best = [1.0] * len(traces[:n_texts])
    for parts in {(), drafters}:
        for n_nodes in FIXED:
            engine = Replay(machine, parts, fixed(n_nodes))
            gains = [engine.play(trace, i % 4 == 3) for i, trace in enumerate(traces[:n_texts])]
            best = [max(pair) for pair in zip(best, gains, strict=True)]
    return len(best) / sum(1 / gain for gain in best)


def sweep(tables: Sequence[str], sets: Sequence[str], n_texts: int) -> Iterator[str]:
    """Yields a line for each constant of the rule and value, the others as they are."""

    def line(name: str, value: float) -> str:
        rows = list(report(tables, sets, n_texts, False, AutoPlanner))
        mean = len(rows) / sum(1 / row["mean"] for row in rows)
        n_below = sum(row["n_below"] for row in rows)
        worst = min(row["worst"] for row in rows)
        return f"{name:12} {value:6g}  mean {mean:.4f}  worst {worst:.3f}  below 0.97: {n_below}"

    yield line("as it is", math.nan)
    for name, values in SWEEP.items():
        before = getattr(draft_length, name)
        places = [place for place in (draft_length, auto_planner) if hasattr(place, name)]
        for value in values:
            for place in places:
                setattr(place, name, value)
            yield line(name, value)
        for place in places:
            setattr(place, name, before)


def main() -> None:
    """Prints what each rule would have taken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", default="")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--chosen-by", action="store_true")
    parser.add_argument("--at-once", type=int, default=1, help="texts that share passes")
    parser.add_argument("--fresh", action="store_true", help="no pass was seen before the first")
    parser.add_argument("--hindsight", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    tables = [name for name in options.tables.split(",") if name]
    if options.sweep:
        for line in sweep(tables, options.sets.split(","), options.texts):
            print(line, flush=True)
        return
    for row in report(
        tables,
        options.sets.split(","),
        options.texts,
        not options.chosen_by,
        AutoPlanner,
        options.at_once,
        guessed_costs if options.fresh else KnownCosts,
    ):
        print(
            f"{row['set']:10} {row['table']:17} mean {row['mean']:.3f}  worst {row['worst']:.3f}  "
            f"{row['tokens_per_round']:.2f} tokens a round, {row['texts']} texts",
            flush=True,
        )
        if options.hindsight:
            row["best_fixed"] = hindsight(
                row["set"], row["table"], options.texts, not options.chosen_by
            )
            print(
                f"{'':28} {row['mean'] / row['best_fixed']:.3f} of the best fixed choice",
                flush=True,
            )
        rows.append(row)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
