"""Other suggestions for the same place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from edgedec.autocomplete import AutocompleteConfig, Autocompleter, Document
from edgedec.models.errors import SessionError
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.text.tokenizer import Tokenizer

from ..runtime.conftest import Row, ToyModel
from .test_autocompleter import LongPass
from .typing_parts import TEXT, HeldPasses, Maker, at, knowing, offered

WAYS = ("I like tea\n", "I like coffee\n", "I like milk\n")


def torn(codec: Tokenizer) -> Callable[[Sequence[int]], Row]:
    """Returns the rule of a model that knows several ways to go on, the first one best."""

    def rule(prefix: Sequence[int]) -> Row:
        rows = [knowing(way, codec)(prefix) * (1 - 0.01 * i) for i, way in enumerate(WAYS)]
        total: Row = sum(rows[1:], start=rows[0])
        return total

    return rule


def test_alternatives_begin_differently(make_engine: Maker, tokenizer: Tokenizer) -> None:
    config = AutocompleteConfig(max_idle_cpu=0.0, min_probability=0.0)
    with make_engine(torn(tokenizer)) as engine, Autocompleter(engine, config) as completer:
        document = at(7, WAYS[0])
        assert offered(completer.update(document)) == "tea"
        found = completer.alternatives(3).result(timeout=60)
        assert {offer.text for offer in found} == {"tea", "coffee", "milk"}
        assert [o.probability for o in found] == sorted(o.probability for o in found)[::-1]
        assert {offer.version for offer in found} == {completer.version}
        assert offered(completer.update(document)) == "tea"  # and goes on as before


def test_alternatives_that_nobody_waits_for_end_within_a_pass(
    make_engine: Maker, tokenizer: Tokenizer
) -> None:
    config = AutocompleteConfig(max_idle_cpu=0.0, min_probability=0.0)
    with make_engine(torn(tokenizer)) as engine, Autocompleter(engine, config) as completer:
        model = engine.model
        assert isinstance(model, ToyModel)
        assert offered(completer.update(at(7, WAYS[0]))) == "tea"
        held = model.before_pass = HeldPasses()
        n_before = model.n_passes
        asked = completer.alternatives()
        held.began.wait(60)
        wanted = completer.update(at(4))
        assert asked.cancelled()
        held.goes_on.set()
        n_alternatives = model.n_passes - n_before
        assert n_alternatives <= 2
        wanted.result(timeout=60)


def test_alternatives_where_there_is_nothing(engine: Engine) -> None:
    with Autocompleter(engine) as completer:
        assert completer.alternatives().result(timeout=60) == []
        completer.update(Document("", 0)).result(timeout=60)
        assert completer.alternatives().result(timeout=60) == []
    with pytest.raises(SessionError, match="closed"):
        completer.alternatives()


def test_alternatives_are_ended_in_the_midst_of_a_pass(engine: Engine) -> None:
    assert isinstance(engine.model, ToyModel)
    with Autocompleter(engine, AutocompleteConfig(max_idle_cpu=0.0, method="plain")) as completer:
        assert offered(completer.update(at(4))) == TEXT[4:19]
        first = LongPass(engine.model)
        asked = completer.alternatives(2)
        assert first.has_begun.wait(60)
        assert offered(completer.update(at(25))) == TEXT[25:44]
        assert asked.cancelled()
