"""What publishers state of a model besides its weights, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgedec.models.fields import Fields


@dataclass(frozen=True)
class SpecialTokens:
    """Tokens with a meaning of their own.

    eos_ids: those that end a text or a turn.
    opening_ids: those that a prompt without template begins with.
    closing_ids: those that a text for an encoder ends with. start_id: what its decoder begins with.
    variables: what a chat template may name, such as ``bos_token``: a text, or several.
    """

    eos_ids: tuple[int, ...]
    opening_ids: tuple[int, ...] = ()
    variables: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    closing_ids: tuple[int, ...] = ()
    start_id: int | None = None


TEMPLATE_NAMES = ("default", "tool_use")
"""What publishers call the template of conversations, and that of those with tools.

Source: transformers 4.57 ``tokenization_utils_base.py`` ``get_chat_template`` (Apache-2.0).
"""


def one_template(default: str | None, with_tools: str | None) -> str | None:
    """Returns a template that does what two do, one of them for conversations with tools.

    Each part begins and ends with an empty expression, so that the tags around it trim nothing.
    """
    if default is None or with_tools is None:
        return default
    with_tools, default = (text.removesuffix("\n") for text in (with_tools, default))
    return (
        f"{{% if tools %}}{{{{ '' }}}}{with_tools}{{{{ '' }}}}"
        f"{{% else %}}{{{{ '' }}}}{default}{{{{ '' }}}}{{% endif %}}"
    )


SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Recommendations that a bundle keeps, named as in ``generation_config.json``, besides the flag
``do_sample``."""


_MOST = 1e9  # larger numbers are typing errors, and no sampler takes them


def usable(stated: Mapping[str, float]) -> dict[str, Any]:
    """Returns recommended numbers without those that mean "off", such as a ``top_k`` of -1.

    Numbers that no sampler can use count as off as well.
    """
    is_on: dict[str, Callable[[float], bool]] = {
        "temperature": lambda value: 0 <= value <= _MOST,
        "top_k": lambda value: 0 < value <= _MOST,
        "top_p": lambda value: 0 < value < 1,
        "min_p": lambda value: 0 < value <= 1,
        "repetition_penalty": lambda value: 0 < value <= _MOST,
    }
    return {key: value for key, value in stated.items() if is_on[key](value)}


def read_suppressed(fields: Fields, key: str) -> list[int]:
    """Returns the ids of tokens that a publisher wants never to be written, as ``key`` states.

    Raises:
        CheckpointError: It is no list of whole numbers.
    """
    stated = fields.get(key)
    ids = stated.tolist() if isinstance(stated, np.ndarray) else stated
    if ids is None:
        return []
    if not isinstance(ids, list) or any(type(token) is not int for token in ids):
        fields.fail(key, stated, "a list of token ids")
    return ids
