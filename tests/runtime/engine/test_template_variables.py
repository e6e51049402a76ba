"""Variables that a request gives to the chat template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgedec.models.errors import ConfigError
from edgedec.runtime.engine.engine import Engine

TEMPLATE = "{% if enable_thinking %}quick {% endif %}{{ messages[-1].content }}"
MESSAGES = [{"role": "user", "content": "fox"}]
THINKING = {"enable_thinking": True}


def test_every_kind_of_request_gives_them_to_the_template(
    make_engine: Callable[..., Engine],
) -> None:
    engine = make_engine(template=TEMPLATE)
    expected = engine.generate(engine.tokenizer.encode("quick fox"), max_new_tokens=4).token_ids
    asked: dict[str, Any] = {"max_new_tokens": 4, "template_variables": THINKING}
    assert engine.encode(MESSAGES, THINKING) == engine.tokenizer.encode("quick fox")
    assert engine.encode(MESSAGES) == engine.tokenizer.encode("fox")
    stream = engine.stream(MESSAGES, **asked)
    list(stream)
    assert list(stream.token_ids[:5]) == engine.encode(MESSAGES, THINKING)
    assert engine.generate(MESSAGES, **asked).token_ids == expected
    assert engine.generate_many([MESSAGES], **asked)[0].token_ids == expected
    assert engine.best_of(MESSAGES, 1, **asked).result.token_ids == expected
    turn = engine.conversation().send("fox", **asked)
    list(turn)
    assert turn.result.token_ids == expected


@pytest.mark.parametrize("value", [5, {1: 2}, {"x": object()}, [["a", 1]]])
def test_other_things_are_refused(make_engine: Callable[..., Engine], value: Any) -> None:
    with pytest.raises(ConfigError, match=r"template_variables is .*expected JSON values by name"):
        make_engine().generate("fox", template_variables=value)
