"""Whether two models can take turns."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgedec.models.blocks import decoder_shapes
from edgedec.models.config import ModelConfig
from edgedec.models.errors import ConfigError


@dataclass(frozen=True)
class Pair:
    """A target and a draft model.

    tokenizers: SHA-256 of both, the target model's first. target, draft: their hyper-parameters.
    fingerprint: of the draft model.
    """

    tokenizers: tuple[str, str]
    target: ModelConfig
    draft: ModelConfig
    fingerprint: str

    @property
    def size_ratio(self) -> float:
        """Parameters of the draft model per parameter of the target model."""
        return n_parameters(self.draft) / n_parameters(self.target)

    def check(self) -> None:
        """Raises a ConfigError unless the models can take turns."""
        target, draft = self.tokenizers
        if target != draft:
            raise ConfigError(
                f"the models have different tokenizers (SHA-256 {target[:16]} and {draft[:16]}), "
                "and only one text of tokens can be written: name a bundle of the same tokenizer "
                "with --draft"
            )
        if self.draft.trimmed_head_size:
            raise ConfigError(
                f"the draft model's LM head knows {self.draft.trimmed_head_size} of "
                f"{self.draft.vocab_size} tokens, so it can draft but not write: export with "
                "--draft-vocabulary all, or name another bundle with --draft"
            )
        if self.draft.n_logits > self.target.n_logits:
            raise ConfigError(
                f"the draft model has {self.draft.n_logits} logits, the target model "
                f"{self.target.n_logits}, expected no more than those: they are of no one family"
            )


def checked(pair: Pair | None) -> Pair:
    """Returns ``pair`` if its models can take turns.

    Raises:
        ConfigError: There is no second model, or they cannot take turns.
    """
    if pair is None:
        raise ConfigError(
            "switching needs a second, smaller model: export the bundle with --draft and "
            "--draft-vocabulary all, or name another bundle with --draft"
        )
    pair.check()
    return pair


def n_parameters(config: ModelConfig) -> int:
    """Returns how many weights a plain decoder of this configuration has.

    Of models without a recipe that is all there is to go by.
    """
    return sum(math.prod(shape) for shape in decoder_shapes(config).values())
