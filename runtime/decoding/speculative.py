"""Speculative decoding: rounds in which the target model judges several drafted tokens at once."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from edgedec.runtime.decoding.planner import Planner, RoundTimings
from edgedec.runtime.decoding.strategy import TARGET, DecodeState, StepResult
from edgedec.runtime.decoding.verifiers import DEFAULT_VERIFIER, Verdict, Verifier
from edgedec.runtime.decoding.verifiers.verifier import NoiseChance, check_kind
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree, SiblingKind
from edgedec.runtime.drafting.drafter import Budget, DraftContext, RoundOutcome
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sampling.sampling import Survivors
from edgedec.runtime.sessions.session import Rows

if TYPE_CHECKING:
    from edgedec.runtime.drafters.draft.overlapped import OverlappedDrafter


class Speculative:
    """Rounds of propose, verify, commit and re-anchor.

    The last emitted token, the anchor, is not in the KV cache yet; a round's pass computes it
    together with the tree that hangs on it. With an empty tree that is a step of plain decoding.
    """

    def __init__(
        self,
        planner: Planner,
        verifier: Verifier = DEFAULT_VERIFIER,
        overlap: OverlappedDrafter | None = None,
        no_overlap: str = "",
    ) -> None:
        """overlap: one of the planner's drafters. no_overlap: why there is none."""
        self._planner = planner
        self._verifier = verifier
        self._overlap = overlap
        self._no_overlap = no_overlap
        self.name = planner.name
        self.is_lossless = verifier.is_lossless

    def begin(self, state: DecodeState) -> None:
        if self._overlap is not None:
            self._overlap.clear_counts()
        self._planner.begin(state.tokens)

    def step(self, state: DecodeState, noise: Noise) -> StepResult:
        """Returns the tokens of a round; of the first step, the token that prefill gave."""
        context = DraftContext(
            state.tokens,
            state.n_prompt,
            state.sampling,
            noise,
            state.mask,
            state.config.speculation,
        )
        if (rows := state.take_rows()) is not None:
            verdict = Verdict((), state.pick_from(rows, 0, noise), True, frozenset())
            return self._re_anchor(context, DraftTree(), verdict, rows, None)
        started_s = time.perf_counter()
        tree = self._propose(state, context)
        drafted_s = time.perf_counter()
        verdict, rows = self._verify(state, context, tree)
        self._commit(state, tree, verdict)
        verified_s = time.perf_counter()
        timings = RoundTimings(1000 * (drafted_s - started_s), 1000 * (verified_s - drafted_s))
        state.stats.draft_ms += timings.draft_ms
        state.stats.verify_ms += timings.verify_ms
        return self._re_anchor(context, tree, verdict, rows, timings)

    def end(self, state: DecodeState) -> None:
        session = state.session
        session.truncate(min(session.n_tokens, len(state.tokens)))
        self._planner.end(state.tokens)
        state.stats.failed_drafters.update(self._planner.failures)
        if self._overlap is not None:
            state.stats.n_early = self._overlap.n_early
            state.stats.n_early_used = self._overlap.n_early_used

    def explain(self) -> list[str]:
        """Returns what was decided in the latest output, a line each."""
        lines = self._planner.explain()
        if self._overlap is not None:
            return [*lines, *self._overlap.explain()]
        return [*lines, f"overlap: off, {self._no_overlap}"] if self._no_overlap else lines

    def close(self) -> None:
        self._planner.close()

    def _propose(self, state: DecodeState, context: DraftContext) -> DraftTree:
        """Returns the tree to verify; empty when only one more token fits."""
        asked = context.speculation
        n_free = state.session.context - len(state.tokens)
        room = Budget(
            n_nodes=min(n_free, asked.draft_len or n_free),
            depth=min(state.n_left - 1, asked.depth or state.n_left),
        )
        if room.depth < 1:
            return DraftTree()
        tree = fit(self._planner.propose(context, room), state, room)
        check_kind(self._verifier, tree)
        return tree

    def _verify(
        self, state: DecodeState, context: DraftContext, tree: DraftTree
    ) -> tuple[Verdict, Rows]:
        """Returns what is accepted, and the rows of the pass it was judged by."""
        overlap, noise = self._overlap, context.noise
        with nullcontext() if overlap is None else overlap.beside(context, tree, state.n_left):
            rows = state.session.forward(
                tree.to_pass(state.tokens[-1]), range(len(tree) + 1), with_logits=state.needs_logits
            )
        target = TreeRows(state, tree, rows, noise)
        return self._verifier.verify(tree, target, NoiseChance(noise)), rows

    def _commit(self, state: DecodeState, tree: DraftTree, verdict: Verdict) -> None:
        """Keeps the anchor and the accepted nodes in the KV cache."""
        state.session.commit([0, *(node + 1 for node in verdict.path)])
        state.stats.count_pass(tree, verdict.evaluated, verdict.path, verdict.is_bonus)

    def _re_anchor(
        self,
        context: DraftContext,
        tree: DraftTree,
        verdict: Verdict,
        rows: Rows,
        timings: RoundTimings | None,
    ) -> StepResult:
        """Returns the round's tokens, the last of which is the next anchor; lets drafters learn."""
        accepted = [tree.nodes[i] for i in verdict.path]
        tokens = (*(node.token for node in accepted), verdict.next_token)
        outcome = RoundOutcome(tree, verdict.path, tokens, rows.stats)
        self._planner.observe(context, outcome, timings)
        if self._overlap is not None and timings is not None:
            self._overlap.count_round(len(tokens), timings.draft_ms + timings.verify_ms)
        return StepResult(tokens, (*(node.origin for node in accepted), TARGET))


class TreeRows:
    """What the target model says after each node: a pass's rows, with the sampler at that node."""

    def __init__(self, state: DecodeState, tree: DraftTree, rows: Rows, noise: Noise) -> None:
        self._state = state
        self._tree = tree
        self._rows = rows
        self._noise = noise

    def pick(self, node: int) -> int:
        return self._state.pick_from(self._rows, node + 1, self._noise, self._tokens(node))

    def law(self, node: int) -> Survivors:
        return self._state.survivors_from(self._rows, node + 1, self._tokens(node))

    def position(self, node: int) -> int:
        depth = 0 if node == ROOT else self._tree.nodes[node].depth
        return len(self._state.tokens) + depth

    def _tokens(self, node: int) -> tuple[int, ...]:
        return tuple(self._tree.nodes[i].token for i in self._tree.path(node))


def fit(tree: DraftTree, state: DecodeState, room: Budget) -> DraftTree:
    """Returns the part of ``tree`` worth a row of the pass.

    Dropped is what the model has no such token for or the context no room, what follows a stop
    token, stop tokens themselves (the row before them finds them as soon), and what the grammar
    forbids. Drawn trees cannot be pruned; one that asks for the impossible is dropped as a whole.
    """
    n_ids = state.session.vocab_size
    possible = [0 <= n.token < n_ids and n.depth <= room.depth for n in tree.nodes]
    if tree.kind is not SiblingKind.DETERMINISTIC:
        return tree if all(possible) and len(tree) <= room.n_nodes else DraftTree()
    kept: set[int] = {ROOT}
    for i, node in enumerate(tree.nodes):
        if len(kept) > room.n_nodes:
            break
        if possible[i] and node.parent in kept and node.token not in state.stop_token_ids:
            path = [tree.nodes[above].token for above in tree.path(node.parent)]
            allowed = state.allowed_after(path)
            if allowed is None or allowed[node.token]:
                kept.add(i)
    kept.remove(ROOT)
    return tree if len(kept) == len(tree) else tree.subtree(kept)
