"""Which models are suggested, and what `edgedec models` says of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedec.apps import model_advice
from edgedec.apps.model_advice import measured_read_rate, suggested_names, tokens_per_s
from edgedec.export.checkpoints.catalogue import CATALOGUE
from edgedec.export.library import Library
from edgedec.models.errors import ConfigError


def listed(read_rate: float, memory_bytes: float) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "kind": entry.kind,
            "n_bytes": entry.n_bytes,
            "fits": entry.ram_bytes < memory_bytes,
            "tokens_per_s": tokens_per_s(entry.active_bytes or entry.n_bytes, read_rate),
        }
        for name, entry in CATALOGUE.items()
    ]


@pytest.mark.parametrize(
    ("gb_per_s", "memory_gb", "chat", "code"),
    [
        (1, 1, "smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct"),  # none is fast enough
        (15, 8, "qwen3-1.7b", "qwen2.5-coder-0.5b-instruct"),
        (40, 16, "qwen3-4b", "qwen2.5-coder-1.5b-instruct"),
        (40, 64, "qwen3-30b-a3b", "qwen2.5-coder-1.5b-instruct"),  # a token reads 3B of 30B
        (200, 8, "qwen3-8b", "qwen2.5-coder-7b-instruct"),
    ],
)
def test_the_largest_model_that_fits_and_is_fast_enough(
    gb_per_s: float, memory_gb: float, chat: str, code: str
) -> None:
    found = suggested_names(listed(1e9 * gb_per_s, 1e9 * memory_gb))
    assert found == {"chat": chat, "code": code}


def test_nothing_is_suggested_where_nothing_fits() -> None:
    assert suggested_names(listed(1e10, 0)) == {}


def test_speeds_are_estimated_from_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured_read_rate() > 0
    assert tokens_per_s(1_000_000_000, 9e9) == 9

    def fail(*given: object) -> float:
        raise RuntimeError("no kernels")

    monkeypatch.setattr(model_advice.limits, "read_rate", fail)
    assert measured_read_rate() > 0


def test_the_list_says_what_suits_this_machine(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("edgedec.apps.models.measured_read_rate", lambda: 15e9)
    monkeypatch.setattr("edgedec.apps.models.memory_bytes", lambda: (8 * 10**9, None))
    shown = cli("models", "list").out
    assert "suggested here for code: qwen2.5-coder-0.5b-instruct, about 30 tokens/s" in shown
    assert "suggested here for chat: qwen3-1.7b (*), about 8.2 tokens/s" in shown
    table = json.loads(cli("models", "list", "--json").out)["models"]
    assert [one["n_bytes"] for one in table] == sorted(one["n_bytes"] for one in table)
    described = cli("models", "show", "qwen3-8b").out
    assert "about 3.0 tokens/s here" in described
    assert "no: we have not run this model" in described
    assert not [word for word in ("n_bytes", "True", "False", "None") if word in described]


def test_models_are_removed_by_any_name_that_was_shown(tmp_path: Path) -> None:
    library = Library(tmp_path)
    for name in ("org/name", str(library.bundle("org/name")), "org--name"):
        library.bundle("org/name").mkdir(parents=True)
        library.remove(name)
        assert not library.bundle("org/name").exists()
    with pytest.raises(ConfigError, match="there is nothing here of"):
        library.remove("org/name")
