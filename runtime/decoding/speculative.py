"""Speculative decoding: rounds in which the target model judges several drafted tokens at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgedec.runtime.decoding.plain import plain_pass
from edgedec.runtime.decoding.planner import Planner, Planning, RoundTimings
from edgedec.runtime.decoding.strategy import (
    ONE_TARGET,
    TARGET,
    DecodeState,
    Decoding,
    DecodingStrategy,
    StepResult,
)
from edgedec.runtime.decoding.verifiers import DEFAULT_VERIFIER, Verdict, Verifier
from edgedec.runtime.decoding.verifiers.verifier import NoiseChance
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, RoundOutcome
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sampling.sampling import Survivors
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import HiddenStates
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence


class Speculative(DecodingStrategy):
    """Rounds of propose, verify, commit and re-anchor.

    The last emitted token, the anchor, is not in the KV cache yet; a round's pass computes it
    together with the tree that hangs on it. With an empty tree that is a step of plain decoding.
    """

    def __init__(
        self,
        planner: Planner,
        verifier: Verifier = DEFAULT_VERIFIER,
        with_mtp: bool = False,
    ) -> None:
        """with_mtp: passes shall give what light heads in the target's graph say."""
        self._planner = planner
        self._verifier = verifier
        self.name = planner.name
        self.is_lossless = verifier.is_lossless
        self.has_mtp = with_mtp

    def begin(self, state: DecodeState, hidden: HiddenStates) -> SpeculativeDecoding:
        """Returns the rounds of one request."""
        planning = self._planner.begin(
            DraftPrompt(
                state.plain_tokens,
                hidden,
                state.sequence,
                state.mask is not None,
                state.prediction,
                state.config.is_one_of_many,
            ),
            state.clock.now_s,
        )
        return SpeculativeDecoding(self, state, planning)

    @property
    def hidden_layers(self) -> Sequence[int]:
        """Layers whose hidden states of the prompt the drafters need."""
        return () if self._planner.is_resting else self._planner.hidden_layers

    @property
    def with_mtp(self) -> bool:
        """The row behind the prompt comes with what light heads in the graph say."""
        return self.has_mtp and not self._planner.is_resting

    @property
    def drafters_layers(self) -> Sequence[int]:
        """Layers whose hidden states of the rounds' rows the drafters need."""
        return self._planner.hidden_layers

    @property
    def verifier(self) -> Verifier:
        """What judges drafted tokens."""
        return self._verifier

    @property
    def failures(self) -> Mapping[str, str]:
        """Drafters that were switched off, and why."""
        return self._planner.failures

    def close(self) -> None:
        self._planner.close()


class SpeculativeDecoding(Decoding):
    """The rounds of one request."""

    def __init__(self, method: Speculative, state: DecodeState, planning: Planning) -> None:
        self._method = method
        self._state = state
        self._planning = planning

    def step(self, noise: Noise) -> Passes[StepResult]:
        """Returns the tokens of a round; of the first step, the token that prefill gave."""
        state = self._state
        if self._planning.is_resting:
            return (yield from self._rest(noise))
        context = DraftContext(
            state.plain_tokens,
            state.n_prompt,
            state.sampling,
            noise,
            state.mask,
            state.config.speculation,
        )
        if (rows := state.take_rows()) is not None:
            verdict = Verdict((), state.pick_from(rows, 0, noise), True, frozenset())
            return self._re_anchor(context, DraftTree(), verdict, rows, None)
        started_s = state.clock.now_s()
        tree = yield from self._propose(context)
        drafted_s = state.clock.now_s()
        verdict, rows = yield from self._verify(context, tree)
        self._commit(tree, verdict)
        verified_s = state.clock.now_s()
        draft_ms, verify_ms = 1000 * (drafted_s - started_s), 1000 * (verified_s - drafted_s)
        timings = RoundTimings(draft_ms, verify_ms, rows.company)
        state.stats.draft_ms += timings.draft_ms
        state.stats.verify_ms += timings.verify_ms
        return self._re_anchor(context, tree, verdict, rows, timings)

    def end(self) -> None:
        state, team = self._state, self._planning.team
        state.sequence.rewind(min(state.sequence.n_tokens, len(state.tokens)))
        team.end(state.plain_tokens)
        self._planning.end()
        state.stats.failed_drafters.update(self._method.failures)

    def catch_up(self, target: TokenSequence) -> Passes[int]:
        """Has the models that drafted compute what was predicted for them, and draft better."""
        return (yield from self._planning.team.use_idle_time(self._state.plain_tokens, target))

    def explain(self) -> list[str]:
        """Returns what was decided, a line each."""
        return [*self._planning.explain(), *self._planning.team.explain()]

    def explain_rounds(self) -> list[str]:
        """Returns what was decided in each round, and why."""
        return self._planning.explain_rounds()

    def _rest(self, noise: Noise) -> Passes[StepResult]:
        """Returns the token of a step in which nothing is drafted."""
        state = self._state
        rows = state.take_rows() if state.rows is not None else None
        if rows is None:
            rows = yield from plain_pass(state)
            state.stats.verify_ms += rows.ms
            self._planning.rested(rows)
        return StepResult((state.pick_from(rows, 0, noise),), ONE_TARGET)

    def _propose(self, context: DraftContext) -> Passes[DraftTree]:
        """Returns the tree to verify; empty when only one more token fits."""
        state, options = self._state, context.speculation
        n_free = state.sequence.context - len(state.tokens)
        room = Budget(
            n_nodes=min(n_free, options.draft_len or n_free),
            depth=min(state.n_left - 1, options.depth or state.n_left),
        )
        if room.depth < 1:
            return DraftTree()
        tree = yield from self._planning.propose(context, room)
        if not len(tree):
            return tree
        if not state.sequence.model.capabilities.trees:
            tree = tree.likeliest_chain()
        tree = fit(tree, state, room)
        return tree

    def _verify(self, context: DraftContext, tree: DraftTree) -> Passes[tuple[Verdict, Rows]]:
        """Returns what is accepted, and the rows of the pass it was judged by."""
        state, noise, model = self._state, context.noise, self._planning.model
        pass_ = Pass(
            state.sequence,
            tree.to_pass(state.tokens[-1]),
            range(len(tree) + 1),
            self._method.drafters_layers,
            with_logits=state.needs_logits,
            with_mtp=self._method.has_mtp and self._planning.wants_mtp,
        )
        rows = (yield pass_) if model is None else (yield from model.verify(pass_))
        target = TreeRows(state, tree, rows, noise)
        return self._method.verifier.verify(tree, target, NoiseChance(noise)), rows

    def _commit(self, tree: DraftTree, verdict: Verdict) -> None:
        """Keeps the anchor and the accepted nodes in the KV cache."""
        self._state.sequence.commit([0, *(node + 1 for node in verdict.path)])
        self._state.stats.count_pass(tree, verdict.evaluated, verdict.path, verdict.is_bonus)

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
        # The drafters got those of the prompt's rows when the output began.
        states_of = {} if timings is None else rows.hidden
        hidden = {layer: states.copy() for layer, states in states_of.items()}
        ms = None if timings is None else timings.draft_ms + timings.verify_ms
        outcome = RoundOutcome(tree, verdict.path, tokens, rows.stats, hidden, rows.mtp, ms)
        self._planning.observe(context, outcome, timings)
        return StepResult(tokens, (*(node.origin for node in accepted), TARGET))


class TreeRows:
    """What the target model says after each node: a pass's rows, with the sampler at that node."""

    def __init__(self, state: DecodeState, tree: DraftTree, rows: Rows, noise: Noise) -> None:
        self._state = state
        self._tree = tree
        self._rows = rows
        self._noise = noise
        self._paths: dict[int, tuple[int, ...]] = {ROOT: ()}

    def pick(self, node: int) -> int:
        return self._state.pick_from(self._rows, node + 1, self._noise, self._tokens(node))

    def distribution(self, node: int) -> Survivors:
        return self._state.survivors_from(self._rows, node + 1, self._tokens(node))

    def position(self, node: int) -> int:
        depth = 0 if node == ROOT else self._tree.nodes[node].depth
        return len(self._state.tokens) + depth

    def _tokens(self, node: int) -> tuple[int, ...]:
        """Returns the drafted tokens down to ``node``, most often one more than were asked last."""
        path = self._paths.get(node)
        if path is None:
            nodes = self._tree.nodes
            parent, token = nodes[node].parent, nodes[node].token
            above = self._paths.get(parent)
            if above is None:
                above = tuple(nodes[i].token for i in self._tree.path(parent))
            path = self._paths[node] = (*above, token)
        return path


def fit(tree: DraftTree, state: DecodeState, room: Budget) -> DraftTree:
    """Returns the part of ``tree`` worth a row of the pass.

    Dropped is what the model has no such token for or the context no room, what follows a stop
    token, stop tokens themselves (the row before them finds them as soon), and what the grammar
    forbids.
    """
    n_ids, stops = state.sequence.vocab_size, state.stop_token_ids
    if state.mask is None and len(tree.nodes) <= room.n_nodes:
        for token, _, depth, _, _ in tree.nodes:
            if not 0 <= token < n_ids or depth > room.depth or token in stops:
                break
        else:
            return tree
    possible = [0 <= n.token < n_ids and n.depth <= room.depth for n in tree.nodes]
    kept: set[int] = {ROOT}
    for i, node in enumerate(tree.nodes):
        if len(kept) > room.n_nodes:
            break
        if possible[i] and node.parent in kept and node.token not in stops:
            if state.mask is not None:
                path = [tree.nodes[above].token for above in tree.path(node.parent)]
                allowed = state.allowed_after(path)
                if allowed is not None and not allowed[node.token]:
                    continue
            kept.add(i)
    kept.remove(ROOT)
    return tree if len(kept) == len(tree) else tree.subtree(kept)
