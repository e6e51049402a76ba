"""What publishers recommend is used, read as off, or refused at export: never at run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgedec import SamplingConfig
from edgedec.export.checkpoints.safetensors_dir import HuggingFaceTexts
from edgedec.models.errors import CheckpointError

OFF = (
    '{"temperature": -1}', '{"temperature": 1e300}', '{"top_k": 0}', '{"top_k": -1}',
    '{"top_k": null}', '{"top_k": 99999999999999999999}', '{"top_p": 0}', '{"top_p": 1}',
    '{"top_p": 1.5}', '{"top_p": -0.1}', '{"min_p": 2}', '{"min_p": -1}', '{"min_p": 0}',
    '{"repetition_penalty": 0}', '{"repetition_penalty": -3}', '{"repetition_penalty": 1e30}',
    '{"eos_token_id": -1}', '{"do_sample": null}', "{}",
)  # fmt: skip
REFUSED = (
    '{"top_k": true}', '{"top_k": 1.5}', '{"temperature": NaN}', '{"temperature": Infinity}',
    '{"temperature": "0.7"}', '{"temperature": 1e400}', '{"temperature": [0.5]}',
    '{"do_sample": 1}', '{"do_sample": "true"}', "[]", "null", "{",
)  # fmt: skip
USED: dict[str, dict[str, Any]] = {
    '{"top_k": 50.0}': {"top_k": 50},
    '{"temperature": 0, "do_sample": true}': {"temperature": 0.0},
    '{"temperature": 1e-40, "do_sample": true}': {"temperature": 1e-40},
    '{"top_k": -1, "top_p": 0.8}': {"top_p": 0.8},
}


def sampling(folder: Path, stated: str) -> dict[str, Any]:
    """Returns the numbers that a directory recommends, which a sampler takes."""
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 90}))
    (folder / "generation_config.json").write_text(stated)
    found = HuggingFaceTexts(folder).sampling
    found.pop("do_sample", None)
    SamplingConfig(**found)
    return found


@pytest.mark.parametrize("stated", OFF)
def test_read_as_off(tmp_path: Path, stated: str) -> None:
    assert sampling(tmp_path, stated) == {}


@pytest.mark.parametrize("stated", USED)
def test_used(tmp_path: Path, stated: str) -> None:
    assert sampling(tmp_path, stated) == USED[stated]


@pytest.mark.parametrize("stated", REFUSED)
def test_refused_at_export(tmp_path: Path, stated: str) -> None:
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        sampling(tmp_path, stated)


@pytest.mark.parametrize(
    ("stated", "named"),
    [
        ({"sequence_bias": [[[1, 2], -4.0]]}, "sequence_bias"),
        ({"num_beams": 4}, "num_beams is 4, which is not applied: use --beams N"),
        ({"guidance_scale": 1.5}, "guidance_scale"),
        ({"epsilon_cutoff": 3e-4}, "epsilon_cutoff"),
        ({"forced_eos_token_id": 2}, "forced_eos_token_id"),
        ({"stop_strings": ["END"]}, "stop_strings"),
        ({"exponential_decay_length_penalty": [5, 1.1]}, "exponential_decay_length_penalty"),
        ({"watermarking_config": {"bias": 2}}, "watermarking_config"),
        ({"novel_setting": "x"}, "novel_setting"),
        (
            {"eos_token_id": 90},
            "eos_token_id names 90, which is not applied: the vocab",
        ),
        ({"eos_token_id": [2, 91, 95]}, "eos_token_id names 91, 95, which"),
        ({"typical_p": 0.9, "top_p": 0.8, "top_k": 9}, "typical_p is 0.9, which is not applied"),
    ],
)
def test_what_is_not_applied_is_named(tmp_path: Path, stated: dict[str, Any], named: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 90}))
    (tmp_path / "generation_config.json").write_text(json.dumps(stated))
    (line,) = HuggingFaceTexts(tmp_path).unapplied
    assert f"generation_config.json: {named}" in line


def test_defaults_of_transformers_are_harmless(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the dev extra")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 90}))
    stated = {
        **transformers.GenerationConfig().to_dict(), "max_length": 4096, "pad_token_id": 0,
        "transformers_version": "4.57.6", "_from_model_config": True, "do_sample": True,
        "temperature": 0.7, "top_p": 1.0, "top_k": 20, "typical_p": 0.9, "num_beams": 1,
    }  # fmt: skip
    (tmp_path / "generation_config.json").write_text(json.dumps(stated))
    assert HuggingFaceTexts(tmp_path).unapplied == ()
    assert sampling(tmp_path, json.dumps(stated))["typical_p"] == 0.9
