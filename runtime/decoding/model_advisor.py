"""Whether to ask the draft model this round, how deep, and when it is not worth its time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgedec.runtime.decoding.acceptance_rates import Backoff, DepthRates
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.drafting.drafter import Budget, DraftContext, ModelDrafting, Unread

MAX_LEVELS = 8
_PRIOR = 0.7  # acceptance of a level before any was seen
_NODES_PER_LEVEL = 1.3  # drafted for verification, on average
_STEP_NODES = 2  # expanded in one pass of the draft model
_LATER_GAIN = 0.8  # of a drafted level is what a level after it brings on average
_FIRST_LEVELS = 3  # drafted in an output until most of them hold
_MARGIN = 1.03  # a draft model must promise this much more than doing without it
_USUAL_FEED = 2  # tokens of the text a draft model has yet to see where it drafts every round
_FEW = 16  # such tokens at most that are a part of the round; reading more is an investment
_STEP_RATE = 0.1  # at which a proposal changes what a step is expected to take
_MOST_STEP_CHANGE = 1.5  # of one proposal
_MOST_FREE_GAIN = 1.25  # over plain decoding, in a round that a model that lost is tried again in
_MODEL_DECAY = 0.98  # what a round leaves of what earlier ones say of a model in all texts
_HORIZON = 128  # tokens over which catching up with the text has to pay
_FIRST_GAIN = 1.3  # taken for granted when an output starts
_STAKE = 1.0  # plain steps' time that catching up may cost on trust alone
_SURE_GAIN = 2.0  # of its cost reading has to promise to be done before as much was lost without
_MOST_LOSS = 0.05  # of plain decoding's time that reading may cost beyond what was saved before
_PART_WORTH = 0.3  # of the usual gain is what a draft model brings that reads only the text's end
_READ_MARGIN = 1.15  # so much more must drafts promise once a predicted text is computed
_FIRST_REST, _LONGEST_REST = 8, 128  # rounds a draft model that lost is left alone


@dataclass(frozen=True)
class ModelPlan:
    """What the draft model promises.

    levels: how deep to draft; 0: do without it.
    rate: tokens per millisecond, as far as promises can be believed. promised_rate: as promised.
    free_rate: what doing without it promises.
    """

    levels: int = 0
    rate: float = 0.0
    is_probe: bool = False
    promised_rate: float = 0.0
    free_rate: float = 0.0


class ModelRates:
    """What was learned of the draft model in all requests.

    levels: of drafts after texts that it computed; predicted_levels: after those that were
    predicted for it. Texts differ, so these change slowly.
    step_scale: milliseconds of a step over those of a pass in its cost table.
    passes_per_level: passes that a level of a tree takes; fewer than one where guesses were right.
    free_gain: over plain decoding, of rounds without it.
    """

    def __init__(self, acceptance: float = _PRIOR) -> None:
        """acceptance: of a level, as far as it is known before any was seen."""
        self.levels, self.predicted_levels = (
            DepthRates(acceptance, MAX_LEVELS, _MODEL_DECAY) for _ in range(2)
        )
        self.step_scale = 1.0
        self.passes_per_level = 1.0
        self.free_gain = 1.0
        self._n_proposals = 0

    @property
    def was_asked(self) -> bool:
        """Whether what is known of it was learned, and not taken for granted."""
        return self._n_proposals > 0

    def learn_step(self, change: float) -> None:
        """Takes in how a step of the latest proposal compares with what was expected.

        The cost table knows passes alone; what is done between them shows in the first proposals,
        and for the head of a small model it is as much again.
        """
        self._n_proposals += 1
        rate = max(_STEP_RATE, 1 / (1 + self._n_proposals))
        self.step_scale *= min(max(change, 1 / _MOST_STEP_CHANGE), _MOST_STEP_CHANGE) ** rate


class ModelAdvisor:
    """Weighs the draft model against doing without it, in one request.

    costs: of passes of the draft model. saved_ms: by this request so far, against plain decoding.
    """

    def __init__(self, model: ModelDrafting, costs: CostTable, rates: ModelRates) -> None:
        self._model = model
        self._costs = costs
        self._rates = rates
        self.saved_ms = 0.0
        self._backoff = Backoff(_FIRST_REST, _LONGEST_REST)
        self._regret_ms = 0.0  # lost so far by doing without the draft model
        self._predicted_regret_ms = 0.0  # lost so far by what it has not read, but was predicted
        self._computed = rates.levels.of_text()
        self._predicted = rates.predicted_levels.of_text()
        self._levels = self._computed
        self._free_gain = rates.free_gain
        self._gain = _FIRST_GAIN  # of rounds with it, over what doing without it promised
        self._most_levels = _FIRST_LEVELS
        self._is_on_trial = False  # the latest probe won

    def plan(
        self,
        context: DraftContext,
        room: Budget,
        target: CostTable,
        free_rate: float,
        other_rate: float = 0.0,
    ) -> ModelPlan:
        """Returns the depth that promises most tokens per millisecond, if the model pays.

        Of a text that was predicted for the model it may have that computed first.

        free_rate: tokens per millisecond that the free drafters promise for this round.
        other_rate: that another model promises.
        """
        unread = self._model.unread(context.tokens)
        n_missing = unread.n_missing
        best = self._best(room, target, free_rate, self._computed, n_missing)
        self._levels = self._computed
        if unread.n_predicted:
            first = self._best(room, target, free_rate, self._predicted, n_missing)
            if self._pays_to_read(unread.n_predicted, room, max(first.rate, free_rate), best):
                self._model.read_exactly()
                self._backoff.reset()
                return self._believed(best)
            best, self._levels = first, self._predicted
        if not self._backoff.is_over():
            return ModelPlan()
        best = self._believed(best)
        is_probe = self._backoff.is_probe or self._is_on_trial
        if is_probe and room.depth >= 2 and self._reads_at_once(n_missing, target):
            # Its rates are those of the time it lost; only other tries give new ones.
            if free_rate > _MOST_FREE_GAIN / target.ms(1):
                self._backoff.wait()
                return ModelPlan()
            return replace(best, levels=2, rate=1 / target.ms(1), is_probe=True)
        if best.rate <= _MARGIN * max(free_rate, other_rate):
            if self._rates.was_asked and best.rate <= _MARGIN / target.ms(1):
                self._backoff.lost()  # else nothing would ever say that it has become better
            return ModelPlan()
        return best if self._pays_to_catch_up(unread, room, target, best.rate) else ModelPlan()

    def budget(self, plan: ModelPlan, room: Budget, target: CostTable, n_nodes: int) -> Budget:
        """Returns how much the model may draft: what earns less than it costs is left out."""
        row_ms = (target.ms(8) - target.ms(4)) / 4
        return Budget(
            n_nodes=min(n_nodes, room.n_nodes),
            depth=min(2 if plan.is_probe else self._most_levels, room.depth),
            min_value=0.5 * row_ms * plan.rate,
            min_step_value=self.step_ms * plan.rate / _LATER_GAIN,
            n_step_nodes=_STEP_NODES,
        )

    def learn(self, plan: ModelPlan, n_held: int, n_emitted: int, verify_ms: float) -> None:
        """Takes in a round that it drafted for by ``plan``, and of whose drafts ``n_held`` held."""
        cost = self._model.passes.cost
        is_usual = 0 < cost.n_fed <= _USUAL_FEED
        n_steps = cost.n_levels + is_usual
        if n_steps:
            measured = (cost.level_ms + is_usual * cost.feed_ms + cost.other_ms) / n_steps
            self._rates.learn_step(measured / self.step_ms)
        if cost.depth:  # passes that made the tree wide, not deep, are in the rates' favour
            passes_per_level = min((cost.n_levels + 1) / cost.depth, 1.0)
            self._rates.passes_per_level += 0.1 * (passes_per_level - self._rates.passes_per_level)
        if cost.n_fed > _FEW:
            self._regret_ms = 0.0  # paid
        # Levels deeper than what was emitted were neither accepted nor refused.
        self._levels.observe(min(cost.depth, n_emitted, MAX_LEVELS), n_held)
        if n_held > self._most_levels / 2:
            self._most_levels = min(2 * self._most_levels, MAX_LEVELS)
        ms = verify_ms + self.drafted_ms
        if not plan.is_probe:
            self._levels.trust.observe(ms * plan.promised_rate, n_emitted)
        gain = n_emitted / (ms * plan.free_rate)
        self._gain += 0.2 * (gain - self._gain)
        self._is_on_trial = plan.is_probe and gain > 1.0
        if self._gain > 1.0:
            self._backoff.reset()
        else:
            self._backoff.lost()

    def learn_without(self, gain: float) -> None:
        """Takes in a round without it. gain: tokens per millisecond over plain decoding's."""
        self._free_gain += 0.1 * (gain - self._free_gain)
        self._rates.free_gain += 0.01 * (gain - self._rates.free_gain)
        self._levels.trust.forget()

    @property
    def step_ms(self) -> float:
        """Expected milliseconds of a pass of the draft model, and of what is made of it."""
        return self._rates.step_scale * self._costs.ms(1)

    @property
    def drafted_ms(self) -> float:
        """What the latest proposal cost, catching up with much text aside."""
        cost = self._model.passes.cost
        feed_ms = cost.feed_ms if cost.n_fed <= _FEW else 0.0
        return cost.level_ms + feed_ms + cost.other_ms

    def _best(
        self,
        room: Budget,
        target: CostTable,
        free_rate: float,
        rates: DepthRates,
        n_missing: int,
    ) -> ModelPlan:
        """Returns the depth that promises most tokens per millisecond.

        n_missing: tokens that the first level's pass reads as well, if they are few.
        """
        best = ModelPlan()
        n_fed = n_missing if 1 <= n_missing <= _FEW else 1
        feed_ms = self._costs.ms(n_fed) - self._costs.ms(1)
        for levels in range(1, min(self._most_levels, room.depth) + 1):
            n_rows = min(1 + round(_NODES_PER_LEVEL * levels), room.n_nodes + 1)
            ms = levels * self._rates.passes_per_level * self.step_ms + feed_ms + target.ms(n_rows)
            rate = (1 + rates.expected_tokens(levels)) / ms
            if rate > best.rate:
                best = ModelPlan(levels, rate, promised_rate=rate, free_rate=free_rate)
        return best

    def _believed(self, plan: ModelPlan) -> ModelPlan:
        """Returns ``plan`` with what comes of it if promises come true as they did of late."""
        return replace(plan, rate=self._levels.trust.factor * plan.promised_rate)

    def _pays_to_read(self, n_predicted: int, room: Budget, rate: float, exact: ModelPlan) -> bool:
        """Whether computing what was predicted is worth it; as `_pays_to_catch_up`, from rounds.

        rate: tokens per millisecond without it. exact: what drafts promise with it.
        """
        cost_ms = n_predicted * self._costs.row_ms_of_many
        saved_ms = 1 / rate - _READ_MARGIN / exact.rate if exact.levels else 0.0  # per token
        n_tokens = 1 + self._predicted.expected_tokens(exact.levels)
        # What chance takes in one round it gives back in others.
        self._predicted_regret_ms = max(self._predicted_regret_ms + n_tokens * saved_ms, 0.0)
        n_left = min(room.depth, _HORIZON)
        return self._predicted_regret_ms > cost_ms and n_left * saved_ms > cost_ms / 2

    def _reads_at_once(self, n_missing: int, target: CostTable) -> bool:
        """Whether what it has missed of the text costs too little to be weighed."""
        return (n_missing - _USUAL_FEED) * self._costs.row_ms_of_many <= _STAKE * target.ms(1)

    def _pays_to_catch_up(
        self, unread: Unread, room: Budget, target: CostTable, rate: float
    ) -> bool:
        """Whether reading what the draft model has missed is worth it.

        What it would save over what may be left of the output has to exceed half of that cost.
        And the cost, but for a small stake, has to be lost already by not having it: a text that
        ends soon, or that free drafters turn out to follow well, never pays for the reading (ski
        rental); but for a model that other texts have shown to save much. Nor may the whole become
        slower than plain decoding, should nothing come of it.
        """
        if unread.n_missing <= _FEW:
            return True
        cost_ms = (unread.n_missing - _USUAL_FEED) * self._costs.row_ms_of_many
        saved_ms = max(target.ms(1) / max(self._free_gain, 1.0) - 1 / rate, 0.0)  # per token
        if unread.is_end_only:
            saved_ms *= _PART_WORTH
        self._regret_ms += saved_ms
        n_left = min(room.depth, _HORIZON)
        is_lost = self._regret_ms > cost_ms - _STAKE * target.ms(1)
        is_sure = self._rates.was_asked and n_left * saved_ms > _SURE_GAIN * cost_ms
        is_affordable = cost_ms < self.saved_ms + _MOST_LOSS * n_left * target.ms(1)
        pays = n_left * saved_ms > cost_ms / 2
        return (is_sure or is_lost) and is_affordable and pays
