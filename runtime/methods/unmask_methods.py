"""How a model that fills masks in decodes a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig, SpeculationConfig, UnmaskConfig
from edgedec.runtime.config.unmasking import CONFIDENCE
from edgedec.runtime.decoding.unmasking import (
    CanvasReading,
    HighestConfidence,
    MaskedModel,
    Unmasking,
    UnmaskRule,
    WholeReading,
)
from edgedec.runtime.drafting.extensions import load_extension
from edgedec.runtime.methods.method_parts import AUTO, PLAIN
from edgedec.runtime.sequences.sequence import TokenSequence


def unmasking(model: MaskedModel, request: GenerationConfig) -> Unmasking:
    """Returns the method that ``request`` asks for.

    Raises:
        ConfigError: The request asks for what needs a model that writes from left to right.
    """
    if (name := next(_refused(request), None)) is not None:
        raise ConfigError(
            f"{name} needs a model that writes from left to right, and this one fills masks in: "
            "leave it out"
        )
    setting = request.unmask or UnmaskConfig()
    make_rule: Callable[[], UnmaskRule] = HighestConfidence
    make_reading: Callable[[TokenSequence], CanvasReading] = WholeReading
    if setting.rule != CONFIDENCE:
        make_rule = load_extension("unmask rule", setting.rule).maker(setting, model)
    if setting.refresh:
        make_reading = load_extension("unmask rule", "delayed-cache").maker(setting)
    return Unmasking(model, setting, make_rule, make_reading)


def _refused(request: GenerationConfig) -> Iterator[str]:
    """Yields what ``request`` asks for that decoding by unmasking does not have."""
    sampling = request.sampling
    if request.method not in (None, AUTO, PLAIN):
        yield f"method {request.method}"
    for name in ("verifier", "switch", "logprobs"):
        if getattr(request, name) is not None:
            yield name
    if request.speculation != SpeculationConfig():
        yield "speculation"
    if request.constraint is not None:
        yield request.constraint[0]
    if request.prefix:
        yield "prefix"
    if request.thought_budget is not None:
        yield "thought_budget"
    if sampling.is_banning:
        yield "n-grams, bad words, a minimum length and suppressed beginnings"
    if sampling.is_editing or sampling.is_by_path:
        yield "sampling with biases, penalties, mirostat or xtc"
