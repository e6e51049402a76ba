"""Trees of what a model finds likely, grown level by level, most promising nodes first."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from edgedec.runtime.drafting.draft_passes import PREFIX, DraftPasses
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import (
    Budget,
    DraftContext,
    DraftPrompt,
    ModelDrafting,
    RoundOutcome,
    Unread,
)
from edgedec.runtime.drafting.drafters.draft.acceptance_curve import AcceptanceCurve
from edgedec.runtime.drafting.drafters.draft.candidates import Candidate, Candidates
from edgedec.runtime.drafting.drafters.draft.distribution import Option, coupled, likeliest
from edgedec.runtime.drafting.drafters.draft.guesses import MAX_GUESSES, Guesses
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.text.token_map import DraftText, TokenMap

MAX_MISSING = 256
"""Most tokens of a text that the draft model reads as a whole before it drafts."""

WHOLE_STEPS = 4
"""Steps of plain decoding that reading a text as a whole may take."""

N_RECENT = 32
"""Tokens it reads of a text that is longer, or dearer: its end.

Reading all of a long prompt takes longer than it saves, and a part is worth little more than the
end. Of the tokens that Qwen2.5-Coder 1.5B writes after nine prompts of 61 to 253 tokens, the 0.5B
guesses 80 % from the last 32 of the prompt, 82 % from 64 and 85 % from all. Of its summaries of 469
and 762 tokens it guesses 28, 29 and 80 %, but there it copies, which prompt lookup finds for
nothing."""


class TreeDrafter(ABC):
    """What requests share: how far a model's probabilities can be believed, by what became of them.

    token_map: between the target model's tokens and those of the model that drafts.
    target_vocab_size: tokens that the target model has logits for.
    """

    hidden_layers: tuple[int, ...] = ()

    def __init__(self, name: str, token_map: TokenMap, target_vocab_size: int) -> None:
        self.name = name
        self.token_map = token_map
        self.target_vocab_size = target_vocab_size
        # What leads its siblings is accepted oftener than its probability says, others less often.
        self.curves = {
            (is_greedy, is_first): AcceptanceCurve()
            for is_greedy in (True, False)
            for is_first in (True, False)
        }
        self.guesses = Guesses()

    @abstractmethod
    def open(self, prompt: DraftPrompt, text: Sequence[int]) -> DraftPasses:
        """Returns what runs passes for a request whose prompt is ``text`` to the model."""

    def begin(self, prompt: DraftPrompt) -> TreeDrafting:
        """Returns the part of a request."""
        return TreeDrafting(self, prompt)

    @abstractmethod
    def close(self) -> None:
        """Releases the model."""


class TreeDrafting(ModelDrafting):
    """One request's part: passes of the model that drafts, which follow the text.

    Rows of drafted tokens that came true are kept, never computed again.

    Under sampling a tree is coupled: it draws with the target model's own noise.
    Bias, penalties and grammars of the request do not reach the draft model, only verification.

    n_recent: tokens that are read of a text that takes too long to read as a whole.
    """

    n_recent = N_RECENT

    def __init__(self, drafter: TreeDrafter, prompt: DraftPrompt) -> None:
        """Begins with what any text before and the prompt have in common."""
        self._drafter = drafter
        self._map = drafter.token_map
        self._text = DraftText(self._map)
        self._start = 0  # of the text that the draft model reads
        self._before: list[int] = []  # what it reads first in place of what is before that
        self._is_whole = False  # it reads all, however long that takes
        self._candidates = Candidates()
        self._proposed_after: int | None = None  # tokens of the text at the latest proposal
        self._noise: Noise | None = None  # that coupled candidates were drawn with
        self.passes = drafter.open(prompt, self._text.follow(prompt.tokens))
        self.passes.align(self._recent(prompt.tokens))

    def unread(self, tokens: Sequence[int]) -> Unread:
        text = self._recent(tokens, is_drafting=True)
        n_missing, n_predicted = self.passes.n_missing(text), self.passes.n_predicted(text)
        is_long = self._start + self.n_recent > MAX_MISSING
        return Unread(n_missing, n_predicted, is_end_only=self._start > 0 and is_long)

    def read_exactly(self) -> None:
        """Has the next proposal compute what was predicted, however much that is."""
        self._is_whole = True
        self._forget()
        self.passes.read_exactly()

    def propose(self, context: DraftContext, budget: Budget) -> Passes[DraftTree]:
        """Returns a tree within ``budget``; empty where the draft model's context ends."""
        self.passes.begin_proposal()
        text = self._recent(context.tokens, is_drafting=True)
        if not text or not self.passes.fits(text) or min(budget.n_nodes, budget.depth) < 1:
            return DraftTree()
        tree = yield from self._propose_best(context, budget, text)
        self.passes.cost.depth = max((node.depth for node in tree.nodes), default=0)
        return tree

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        """Learns how far its probabilities can be believed."""
        if self._proposed_after != len(context.tokens):
            return
        self._proposed_after = None
        firsts: list[tuple[float, bool]] = []
        others: list[tuple[float, bool]] = []
        followed = ROOT
        for token in outcome.emitted:
            children = self._candidates.children(followed)
            options = [self._candidates[i].option for i in children]
            drafts = [(option.probability, option.token == token) for option in options]
            firsts += drafts[:1]
            others += drafts[1:]
            if not any(is_accepted for _, is_accepted in drafts):
                break
            followed = next(i for i in children if self._candidates[i].option.token == token)
        is_greedy = context.sampling.is_greedy
        self._drafter.curves[is_greedy, True].learn(firsts)
        self._drafter.curves[is_greedy, False].learn(others)

    def end(self, tokens: Sequence[int]) -> None:
        """Keeps the rows of ``tokens`` and no others, and gives the sequence back."""
        self.passes.end(self._recent(tokens))
        self._forget()

    def use_idle_time(self, tokens: Sequence[int], target: TokenSequence) -> Passes[int]:
        """Computes what was predicted of ``tokens``, a finished output."""
        return (yield from self.passes.catch_up(self._text.follow(tokens)))

    def _recent(self, tokens: Sequence[int], is_drafting: bool = False) -> list[int]:
        """Returns what the draft model reads of ``tokens``, in its own tokens.

        All of it, or the last `n_recent`, where it would have to compute more than `MAX_MISSING`
        before its next draft, or longer than `WHOLE_STEPS`.
        """
        text = self._text.follow(tokens)
        most = max(min(MAX_MISSING, WHOLE_STEPS * self.passes.rows_per_step), self.n_recent)
        part = [*self._before, *text[self._start :]] if self._start else text
        may_skip = is_drafting and not self._is_whole
        if may_skip and self.passes.n_missing(part) > most:
            self._start = len(text) - self.n_recent
            self._before = self._before_end(text[: self._start], text[self._start :])
            part = [*self._before, *text[self._start :]]
        return part

    def _before_end(self, text: Sequence[int], end: Sequence[int]) -> list[int]:
        """Returns what is read of ``text`` before ``end``: nothing."""
        return []

    def _forget(self) -> None:
        self._candidates, self._proposed_after = Candidates(), None

    def _propose_best(
        self, context: DraftContext, budget: Budget, text: Sequence[int]
    ) -> Passes[DraftTree]:
        """Returns the nodes likeliest to be accepted of all that were looked at."""
        known = self._known(text, context.noise)
        self._forget()
        self._noise = context.noise
        if known:
            self._take_up(known, context)
        else:
            rows = yield from self.passes.feed(text, with_logits=not context.sampling.is_greedy)
            self._add(ROOT, self._options(rows, 0, context, depth=1), context)
        while chosen := self._to_expand(budget):
            yield from self._expand(chosen, context, budget.depth)
        self._proposed_after = len(context.tokens)
        return self._candidates.tree(budget, self._drafter.name)

    def _known(self, text: Sequence[int], noise: Noise) -> list[Candidate]:
        """Returns the candidates after ``text`` if the tree has its last row; aligns the sequence.

        Their parents count from the first of them. Their rows go, for a commit keeps no others.
        """
        row = self.passes.align(text)
        if row == PREFIX:
            return []
        last = self._candidates.at_row(row)
        is_whole = self.passes.sequence.n_tokens == len(text) and self._noise is noise
        known: list[Candidate] = []
        new_index = {last: ROOT}
        for i, candidate in enumerate(self._candidates if is_whole else ()):
            is_found = candidate.probability > 0  # and not a guess that nothing likely was
            if is_found and candidate.parent in new_index:
                new_index[i] = len(known)
                known.append(replace(candidate, parent=new_index[candidate.parent], row=None))
        return known

    def _take_up(self, known: list[Candidate], context: DraftContext) -> None:
        """Makes the ``known`` candidates the tree's."""
        for parent, siblings in itertools.groupby(known, key=lambda c: c.parent):
            self._add(parent, [c.option for c in siblings], context)

    def _options(self, rows: Rows, index: int, context: DraftContext, depth: int) -> list[Option]:
        if context.sampling.is_greedy:
            return likeliest(rows, index, self._map)
        position = len(context.tokens) + depth - 1
        return coupled(rows.logits[index], self._map, context.sampling, context.noise, position)

    def _add(self, parent: int, options: list[Option], context: DraftContext) -> None:
        """Adds what may follow a candidate."""
        if parent != ROOT:
            self._candidates[parent].is_expanded = True
        if options:
            self._drafter.guesses.learn(
                self._candidates.last_two(context.tokens, parent), options[0]
            )
        for i, option in enumerate(options):
            curve = self._drafter.curves[context.sampling.is_greedy, i == 0]
            self._candidates.add(option, parent, curve.acceptance(option.probability))

    def _to_expand(self, budget: Budget) -> list[int]:
        """Returns the candidates whose children are worth a pass; none when drafting shall end."""
        # Nothing that follows the last of the best could be among them.
        best = self._candidates.best(budget)[: budget.n_nodes - 1]
        unknown = [
            i
            for i in best
            if not self._candidates[i].is_expanded and self._candidates[i].depth < budget.depth
        ]
        chosen = unknown[: budget.n_step_nodes]
        value = sum(self._candidates[i].value for i in chosen)
        has_room = self.passes.has_room(len(chosen) + len(self._candidates.rowless_above(chosen)))
        return chosen if has_room and value >= budget.min_step_value else []

    def _expand(
        self, chosen: Sequence[int], context: DraftContext, max_depth: int = 0
    ) -> Passes[None]:
        """Computes the ``chosen`` candidates and adds what may follow them.

        What will probably be chosen next, below the first of them, is guessed and computed too,
        as far as it is less than ``max_depth`` deep.
        """
        above, first = self._candidates.rowless_above(chosen), self.passes.n_rows
        order = [*above, *chosen]
        for row, i in enumerate(order, start=first):
            self._candidates[i].row = row
        nodes = [self._candidates[i] for i in order]
        guesses = self._guess(chosen[0], context, max_depth, len(order))
        n_rows = first + len(order)
        below = [self._candidates.row_of(chosen[0]), *range(n_rows, n_rows + len(guesses))]
        rows = yield from self.passes.grow(
            [option.draft_id for option in (*(node.option for node in nodes), *guesses)],
            [*(self._candidates.row_of(node.parent) for node in nodes), *below[: len(guesses)]],
            with_logits=not context.sampling.is_greedy,
        )
        for index, i in enumerate(chosen, start=len(above)):
            self._add_after(i, rows, index, context)
        last = chosen[0]
        for index, guess in enumerate(guesses, start=len(order)):
            last = self._place(guess, last)
            self._candidates[last].row = first + index
            self._add_after(last, rows, index, context)

    def _guess(
        self, candidate: int, context: DraftContext, max_depth: int, n_rows: int
    ) -> list[Option]:
        """Returns what may come one after the other below ``candidate``, in a pass of more rows.

        n_rows: of the pass without them.
        """
        if not self.passes.takes_guesses:
            return []
        node = self._candidates[candidate]
        most = min(MAX_GUESSES, max_depth - node.depth - 1)
        guesses = self._drafter.guesses.chain(
            self._candidates.last_two(context.tokens, candidate), node.value, most
        )
        return guesses if self.passes.has_room(n_rows + len(guesses)) else []

    def _place(self, guess: Option, parent: int) -> int:
        """Returns the candidate of a guess below ``parent``; one of no worth if there was none."""
        child = self._candidates.child(parent, guess.token)
        return self._candidates.add(guess, parent, 0.0) if child is None else child

    def _add_after(self, candidate: int, rows: Rows, index: int, context: DraftContext) -> None:
        """Adds what may follow a candidate, which row ``index`` of a pass says."""
        depth = self._candidates[candidate].depth + 1
        self._add(candidate, self._options(rows, index, context, depth), context)
