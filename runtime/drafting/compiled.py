"""Free drafters that run compiled: each alone as a `Drafter`, and several of them as a team.

Between two passes, whose weights have emptied the caches, every call of Python takes microseconds.
So what a round asks of a team is one call. `tests/runtime/drafting/reference` has the same drafters
in Python, to be read; tests compare all bits of their trees with those of the compiled ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edgedec.kernels import drafting
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, RoundOutcome


class CompiledDrafter:
    """A `Drafter` whose work is done by compiled code. ``len``: entries that it keeps."""

    name: str
    hidden_layers: Sequence[int] = ()

    def __init__(self, max_entries: int = 0) -> None:
        self.compiled = drafting.Drafter(self.name, max_entries)
        self._alone = drafting.DraftTeam([self.compiled])

    def begin(self, prompt: DraftPrompt) -> CompiledDrafting:
        """Returns the part of a request."""
        return CompiledDrafting(drafting.DraftRounds(self._alone, prompt.tokens), (self.name,))

    def close(self) -> None:
        self.compiled.clear()

    def __len__(self) -> int:
        return len(self.compiled)


class _Request:
    """What compiled drafters do in one request. names: theirs, in the order of the team."""

    def __init__(self, rounds: drafting.DraftRounds, names: Sequence[str]) -> None:
        self._rounds = rounds
        self._names = names
        self._tree: DraftTree | None = None  # first nodes of the latest proposal

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        stats, tree = outcome.stats, outcome.tree
        rows = drafting.Rows(stats.top_ids, stats.top_logits, stats.log_sum_exp)
        verified: drafting.Verified | int = len(tree)
        is_known = self._tree is not None and tree.nodes == self._tree.nodes[: len(tree)]
        if not is_known and len(tree):
            parents = [node.parent for node in tree.nodes]
            verified = drafting.Verified([node.token for node in tree.nodes], parents)
        self._tree = None
        n_accepted = len(outcome.path)
        self._rounds.observe(context.tokens, outcome.emitted, n_accepted, verified, rows)

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        """Returns the likeliest nodes within ``budget``, likeliest first."""
        n_nodes, depth = budget.n_nodes, budget.depth
        return self._kept(self._rounds.propose(context.tokens, n_nodes, depth, budget.min_value))

    def end(self, tokens: Sequence[int]) -> None:
        self._rounds.end(tokens)

    def _kept(self, nodes: Iterable[drafting.Node]) -> DraftTree:
        tree = self._tree = DraftTree()
        for token, probability, parent, _, origin in nodes:
            tree.append(token, parent, probability, self._names[origin])
        return tree


class CompiledDrafting(_Request):
    """A `Drafting` of one compiled drafter."""

    def longest_match(self) -> int:
        """Returns the length of the longest suffix that occurs earlier in the text followed."""
        return self._rounds.longest_match()


class CompiledTeam:
    """Compiled drafters that propose together: one call asks all, and joins their trees."""

    def __init__(self, drafters: Sequence[CompiledDrafter]) -> None:
        drafters = sorted(drafters, key=lambda drafter: drafter.name)  # which decides among equals
        self.names = tuple(drafter.name for drafter in drafters)
        self._team = drafting.DraftTeam([drafter.compiled for drafter in drafters])

    @property
    def name(self) -> str:
        return "+".join(self.names)

    def begin(self, prompt: DraftPrompt) -> TeamDrafting:
        """Returns the part of a request."""
        return TeamDrafting(drafting.DraftRounds(self._team, prompt.tokens), self.names)


class TeamDrafting(_Request):
    """A team's part in one request."""
