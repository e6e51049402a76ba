"""What a request may ask for, validated before any model runs."""

from edgedec.runtime.config.generation import CONSTRAINTS, GenerationConfig
from edgedec.runtime.config.sampling import GREEDY_BELOW, SamplingConfig
from edgedec.runtime.config.speculation import MAX_DRAFT_LEN, SpeculationConfig
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.config.unmasking import UnmaskConfig

__all__ = [
    "CONSTRAINTS",
    "GREEDY_BELOW",
    "MAX_DRAFT_LEN",
    "GenerationConfig",
    "SamplingConfig",
    "SpeculationConfig",
    "SwitchConfig",
    "UnmaskConfig",
]
