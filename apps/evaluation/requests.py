"""The requests that settings of an evaluation stand for, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from edgedec.apps.evaluation.frontier import DRAFT_ALONE
from edgedec.apps.evaluation.tries import Tries
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.generation import EXACT, PREDICTED
from edgedec.runtime.config.switching import POLICIES, SwitchConfig
from edgedec.runtime.methods.method_parts import PLAIN

PRUNED = "pruned"
"""The setting that is the target model without as many layers as its KV maps predict."""


def make_requests(base: GenerationConfig, texts: Sequence[str]) -> dict[str, GenerationConfig]:
    """Returns a request per setting, by the setting's label.

    texts: names of methods, settings of switching as `SwitchConfig.parse` reads them, tries as
        `Tries.parse` does, or one of draft-alone, pruned and predicted (see `TaskOptions`).

    Raises:
        ConfigError: A text is neither.
    """
    requests: dict[str, GenerationConfig] = {}
    for text in texts:
        if not text:
            raise ConfigError("a setting is empty, expected names such as plain,auto")
        if text in (DRAFT_ALONE, PRUNED):
            requests[text] = dataclasses.replace(base, method=PLAIN, prefill=EXACT)
        elif text == PREDICTED:
            requests[text] = dataclasses.replace(base, method=PLAIN, prefill=PREDICTED)
        elif text.partition(":")[0] in POLICIES:
            switch = SwitchConfig.parse(text)
            requests[str(switch)] = dataclasses.replace(base, switch=switch)
        elif (tries := Tries.of(text)) is not None:
            requests[str(tries)] = tries.request(dataclasses.replace(base, method=PLAIN))
        else:
            is_predicted = base.prefill == PREDICTED
            label = f"{text} (predicted)" if is_predicted else text
            requests[label] = dataclasses.replace(base, method=text)
    return requests


def request_facts(request: GenerationConfig) -> dict[str, Any]:
    """Returns a request, JSON-ready."""
    facts = dataclasses.asdict(request)
    facts["switch"] = None if request.switch is None else str(request.switch)
    bias = facts["sampling"]["logit_bias"]
    facts["sampling"]["logit_bias"] = {str(key): str(value) for key, value in bias.items()}
    return facts
