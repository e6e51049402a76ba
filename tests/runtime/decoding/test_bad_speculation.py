"""What speculation cannot do is said before anything runs; what fails later costs no text."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgedec.models.errors import ConfigError
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.config import GenerationConfig, SpeculationConfig
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.drafting.drafter import Budget
from edgedec.runtime.drafting.drafters.draft.draft_model import DraftModelDrafter
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.methods.draft_source import DraftSource
from edgedec.runtime.text.token_map import TokenMap

from ..conftest import OnePool, ToyModel, ToySession
from ..draft_toys import PROMPT, VOCAB, check_sums, generate

pytestmark = pytest.mark.robustness

MakeEngine = Callable[..., Engine]


def check_refused(engine: Engine, config: GenerationConfig, text: str) -> None:
    """Asserts that ``config`` is refused on one line before any pass, and the engine goes on."""
    with pytest.raises(ConfigError, match=text) as caught:
        engine.stream("fox", config)
    assert "\n" not in str(caught.value)
    assert isinstance(engine.model, ToyModel)
    assert engine.model.n_passes == 0
    plain = GenerationConfig(max_new_tokens=3, method="plain")
    assert engine.generate("fox", plain).n_new_tokens == 3


def foreign_draft(folder: Path, vocabulary: Mapping[str, int]) -> DraftSource:
    """Returns a draft model with that byte-level vocabulary, for a target that has `a` and `b`."""
    paths = folder / "target.json", folder / "draft.json"
    for path, vocab in zip(paths, ({"a": 0, "b": 1}, vocabulary), strict=True):
        document = {"model": {"type": "BPE", "vocab": vocab}, "decoder": {"type": "ByteLevel"}}
        path.write_text(json.dumps(document), encoding="utf-8")
    entry = SimpleNamespace(
        config=SimpleNamespace(vocab_size=len(vocabulary)),
        head_ids=None,
        contract=SimpleNamespace(providers=()),
    )
    return DraftSource(folder, cast(ModelEntry, entry), paths, 2, 1, 64, "")


@pytest.mark.parametrize("method", ["draft", "draft+lookup", "auto"])
def test_a_draft_model_without_a_token_in_common(
    make_engine: MakeEngine, tmp_path: Path, method: str
) -> None:
    engine = make_engine(draft=foreign_draft(tmp_path, {"x": 0, "y": 1}))
    check_refused(engine, GenerationConfig(method=method), "tokenizer shares no token with the tar")


@pytest.mark.parametrize("name", ["draft_len", "depth"])
def test_drafts_longer_than_the_context(make_engine: MakeEngine, name: str) -> None:
    speculation = SpeculationConfig(**{name: 32})
    config = GenerationConfig(method="lookup", speculation=speculation, max_new_tokens=2)
    check_refused(make_engine(context=32), config, f"{name} is 32, expected less than 32, the pos")
    assert make_engine(context=33).generate("fox", config).n_new_tokens == 2


@pytest.mark.parametrize("n_nodes", [64, 1024, 2**40])
def test_more_drafts_than_a_pass_has_rows(n_nodes: int) -> None:
    for name in ("draft_len", "depth"):
        with pytest.raises(
            ConfigError, match=rf"^{name} is {n_nodes}, expected at most 63: [^\n]*$"
        ):
            GenerationConfig.from_dict({"speculation": {name: n_nodes}})


@pytest.mark.parametrize("method", ["plain", "lookup", "auto"])
@pytest.mark.parametrize(
    "schema",
    [
        "false",
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"type": "string", "minLength": 5, "maxLength": 2},
        {"allOf": [{"const": 1}, {"const": 2}]},
        {"type": "string", "enum": [1]},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "array", "minItems": 3, "maxItems": 1},
    ],
    ids=str,
)
def test_a_schema_that_nothing_satisfies(make_engine: MakeEngine, schema: Any, method: str) -> None:
    pytest.importorskip("llguidance", reason="needs the extra grammar")
    config = GenerationConfig(json_schema=schema, method=method)
    check_refused(make_engine(), config, "^json_schema is refused: ")


@pytest.mark.parametrize("i_pass", [1, 2, 5])
@pytest.mark.parametrize("error", [RuntimeError("broken"), MemoryError("none left")], ids=repr)
def test_a_draft_model_that_fails_is_switched_off(
    error: Exception, i_pass: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = GenerationConfig(max_new_tokens=30)
    plain = generate(ToySession(VOCAB), PROMPT, config)
    draft = ToySession(VOCAB)

    def fail() -> None:
        if draft.n_passes == i_pass - 1:
            raise error

    draft.before_pass = fail
    role = DraftRole(OnePool(draft), TokenMap.same(VOCAB, VOCAB), VOCAB)
    planner = FixedPlanner([], Budget(n_nodes=5, depth=3), model=DraftModelDrafter(role))
    strategy = Speculative(planner)
    with caplog.at_level(logging.WARNING):
        result = generate(ToySession(VOCAB), PROMPT, config, strategy)
    reason = f"{type(error).__name__}: {error}"
    assert result.token_ids == plain.token_ids
    assert (result.text, result.finish_reason) == (plain.text, plain.finish_reason)
    assert result.stats.failed_drafters == {"draft": reason}
    assert [r.getMessage() for r in caplog.records] == [f"drafter draft is switched off: {reason}"]
    check_sums(result)
    assert generate(ToySession(VOCAB), PROMPT, config, strategy).token_ids == plain.token_ids
