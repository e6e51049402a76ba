"""Samplers that clients of llama.cpp name: those left out are off; what cannot hold is refused."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.apps.serve.core import ServeError
from edgedec.apps.serve.sampler_chain import SamplerChain
from edgedec.runtime.config.sampling import SamplingConfig

N_MAX = 100
VIM = ["top_k", "top_p", "infill"]  # what llama.vim sends


def config(**fields: Any) -> SamplingConfig:
    return SamplingConfig(**fields)


@pytest.mark.parametrize(
    ("stated", "before", "after"),
    [
        ({"samplers": ["top_k", "temperature"]}, {"top_k": 4, "top_p": 0.5}, {"top_k": 4}),
        ({"samplers": ["temperature"]}, {"repetition_penalty": 1.2, "dry_multiplier": 0.8}, {}),
        ({"samplers": ["top_k"]}, {"top_k": 4}, {"top_k": 4, "temperature": 1.0}),
        ({"samplers": "kt"}, {"top_k": 4, "min_p": 0.1}, {"top_k": 4}),
        ({"samplers": "top_k;temp"}, {"top_k": 4, "min_p": 0.1}, {"top_k": 4}),
        ({"samplers": ["top-k", "temp"]}, {"top_k": 4, "xtc_probability": 0.1}, {"top_k": 4}),
        ({"samplers": VIM, "may_infill": True}, {"top_k": 4, "min_p": 0.1}, {"top_k": 4}),
        ({"repeat_last_n": 0}, {"repetition_penalty": 1.2, "presence_penalty": 0.5}, {}),
        ({"repeat_last_n": 0}, {"dry_multiplier": 0.8}, {"dry_multiplier": 0.8}),
        ({"dry_penalty_last_n": 0}, {"dry_multiplier": 0.8}, {}),
        (
            {"samplers": ["top_k"], "repeat_last_n": 64},
            {"mirostat": 2, "repetition_penalty": 1.2},
            {"mirostat": 2, "repetition_penalty": 1.2},
        ),
    ],
)
def test_samplers_left_out_are_off(
    stated: dict[str, Any], before: dict[str, Any], after: dict[str, Any]
) -> None:
    hot = {"temperature": 0.5}
    expected = config(**{**hot, **after})
    assert SamplerChain(**stated).applied(config(**hot, **before), N_MAX) == expected


LLAMA = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc"]
"""llama.cpp's order, where the temperature comes last."""

PENALTY = {"temperature": 0.5, "frequency_penalty": 0.5}


@pytest.mark.parametrize(
    ("stated", "fields"),
    [
        ({"samplers": [*LLAMA, "temperature"]}, {"temperature": 0.5, "top_k": 4}),
        ({"samplers": [*LLAMA, "temperature"]}, {"temperature": 1.0, "top_p": 0.5, "min_p": 0.1}),
        ({"samplers": [*LLAMA, "temperature"]}, {"temperature": 0.0, "top_p": 0.5}),
        ({"samplers": ["temperature", *LLAMA]}, {"temperature": 0.5, "top_p": 0.5, "min_p": 0.1}),
        ({"samplers": "edskypmxt"}, {"temperature": 0.5, "top_n_sigma": 1.0, "top_k": 3}),
        ({"samplers": None, "repeat_last_n": 64, "dry_penalty_last_n": 64}, {"temperature": 0.5}),
        ({"repeat_last_n": -1, "penalize_nl": True}, PENALTY),
        ({"repeat_last_n": N_MAX}, PENALTY),
        ({"penalize_nl": False}, {"temperature": 0.5}),
    ],
)
def test_what_changes_no_text_is_read(stated: dict[str, Any], fields: dict[str, Any]) -> None:
    assert SamplerChain(**stated).applied(config(**fields), N_MAX) == config(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"top_p": 0.95},
        {"min_p": 0.05, "top_k": 40},
        {"typical_p": 0.5, "frequency_penalty": 0.5},
        {"xtc_probability": 0.5, "dry_multiplier": 0.8},
        {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1},
    ],
)
@pytest.mark.parametrize(
    "names", [[*LLAMA, "temperature"], "edskypmxt", ";".join([*LLAMA, "temp"])]
)
def test_the_temperature_may_come_last(names: Any, fields: dict[str, Any]) -> None:
    applied = SamplerChain(names).applied(config(temperature=0.8, **fields), N_MAX)
    assert applied == config(temperature=0.8, temperature_last=True, **fields)


@pytest.mark.parametrize(
    ("stated", "fields", "words"),
    [
        (
            {"samplers": ["top_p", "temperature", "min_p"]},
            {"top_p": 0.5, "min_p": 0.1},
            "order top_p, temperature, min_p",
        ),
        (
            {"samplers": ["top_p", "temperature", "penalties"]},
            {"top_p": 0.5, "frequency_penalty": 0.5},
            "samplers",
        ),
        ({"samplers": ["min_p", "temp", "top_p"]}, {"top_p": 0.5, "min_p": 0.1}, "samplers"),
        ({"samplers": ["min_p", "top_p", "temp"]}, {"top_p": 0.5, "min_p": 0.1}, "samplers"),
        ({"samplers": ["top_p", "top_p"]}, {"top_p": 0.5}, "samplers"),
        ({"samplers": ["top_k", "top_n_sigma"]}, {"top_k": 3, "top_n_sigma": 1.0}, "samplers"),
        ({"samplers": ["tfs_z"]}, {}, "samplers has 'tfs_z'"),
        ({"samplers": VIM}, {}, "samplers has 'infill'"),
        ({"repeat_last_n": 64}, PENALTY, "repeat_last_n is 64"),
        ({"dry_penalty_last_n": 99}, {"dry_multiplier": 0.8}, "dry_penalty_last_n is 99"),
        ({"penalize_nl": False}, PENALTY, "penalize_nl"),
    ],
)
def test_what_would_change_a_text_is_refused(
    stated: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    hot = {"temperature": 0.5, **fields}
    with pytest.raises(ServeError, match=words) as caught:
        SamplerChain(**stated).applied(config(**hot), N_MAX)
    assert caught.value.status == 400


@pytest.mark.e2e
def test_every_interface_reads_them(server: Any) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    wrong = {"repeat_last_n": 2, "frequency_penalty": 1.0}
    for path, body in (
        ("/v1/chat/completions", {**chat, **wrong, "max_tokens": 8}),
        ("/v1/completions", {"prompt": "Hi", **wrong, "max_tokens": 8}),
        ("/v1/responses", {"input": "Hi", **wrong, "max_output_tokens": 8}),
        ("/completion", {"prompt": "Hi", **wrong, "n_predict": 8}),
        ("/api/generate", {"model": "smollm2", "prompt": "Hi", "options": wrong}),
        ("/v1/messages", {**chat, "max_tokens": 8, "repeat_last_n": 2}),
    ):
        status, found = server.ask("POST", path, body)
        assert status == 400, path
        assert "repeat_last_n" in str(found)
    body = {"prompt": "One, two,", "n_predict": 24, "temperature": 0, "repeat_penalty": 1.5}
    plain = server.ask("POST", "/completion", {**body, "repeat_penalty": 1.0})[1]["content"]
    assert server.ask("POST", "/completion", body)[1]["content"] != plain
    for off in ({"samplers": ["temperature"]}, {"repeat_last_n": 0}):
        assert server.ask("POST", "/completion", {**body, **off})[1]["content"] == plain
