"""What switching did in one output: which model gave which token, and what that took."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from edgedec.runtime.decoding.switching.paired_model import CatchUp, PassCounts
from edgedec.runtime.decoding.switching.policy import ModelRole


@dataclass(frozen=True, slots=True)
class Doubt:
    """How unsure the text was when a model was chosen.

    entropy: of the latest prediction. Units: bits. level: what the policy decided by.
    """

    entropy: float = 0.0
    level: float = 0.0


@dataclass(frozen=True, slots=True)
class Switch:
    """A token that another model gave than the one before it.

    position: of the token in the output. doubt: before it. catch_up: the tokens the new model had
    missed, and the time of the pass over them that gave this token.
    """

    position: int
    model: ModelRole
    doubt: Doubt
    catch_up: CatchUp

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields."""
        return {
            "position": self.position,
            "from": str(self.model.other),
            "to": str(self.model),
            "entropy": self.doubt.entropy,
            "level": self.doubt.level,
            "gap": self.catch_up.gap,
            "catch_up_ms": self.catch_up.ms,
        }


@dataclass
class SwitchLog:
    """The record of an output.

    tags: the model of each token. n_dropped: predictions of the draft model that were not kept.
    """

    tags: list[ModelRole] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)
    n_dropped: int = 0

    def add(self, model: ModelRole, doubt: Doubt, catch_up: CatchUp) -> None:
        """Notes the model of the next token; the rest matters where it differs from the last."""
        if self.tags and self.tags[-1] is not model:
            self.switches.append(Switch(len(self.tags), model, doubt, catch_up))
        self.tags.append(model)

    def cut(self, n_tokens: int) -> None:
        """Forgets what is behind the first ``n_tokens`` tokens, which nobody saw."""
        del self.tags[n_tokens:]
        self.switches = [switch for switch in self.switches if switch.position < n_tokens]

    def summary(
        self, draft: PassCounts, target: PassCounts, size_ratio: float | None
    ) -> dict[str, Any]:
        """Returns everything, JSON-ready.

        cost_paper: of the tokens alone, in parts of the target model's, catch-up left out.

        Args:
            size_ratio: Parameters of the draft model per parameter of the target model, if known.

        Source: Entropy Adaptive Decoding (arXiv 2502.06833), whose savings are 1 - cost_paper.
        """
        n_target = self.tags.count(ModelRole.TARGET)
        share = n_target / len(self.tags) if self.tags else 0.0
        cost = None if size_ratio is None else share + (1 - share) * size_ratio
        return {
            "first": str(self.tags[0]) if self.tags else None,
            "n_draft": len(self.tags) - n_target,
            "n_target": n_target,
            "share_target": share,
            "n_switches": len(self.switches),
            "n_dropped": self.n_dropped,
            "cost_paper": cost,
            "passes": {str(ModelRole.DRAFT): asdict(draft), str(ModelRole.TARGET): asdict(target)},
            "log": [switch.to_dict() for switch in self.switches],
        }
