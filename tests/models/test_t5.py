"""T5 and FLAN-T5 against transformers."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.models.config import ModelConfig
from edgedec.models.distance_bias import distance_buckets

from ..parity.encoder_parity import VOCAB, EncoderParity

torch = pytest.importorskip("torch", reason="needs the dev extra")
transformers = pytest.importorskip("transformers", reason="needs the dev extra")

SIZES = {
    "vocab_size": VOCAB, "d_model": 40, "d_kv": 12, "d_ff": 56, "num_layers": 3,
    "num_decoder_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12, "decoder_start_token_id": 0, "pad_token_id": 0,
    "eos_token_id": 1,
}  # fmt: skip


class T5Parity(EncoderParity):
    @classmethod
    def spread(cls, name: str) -> tuple[float, float]:
        """Scores are not scaled, so T5 draws queries smaller."""
        if "relative_attention_bias" in name:
            return 0.0, 1.0
        mean, std = super().spread(name)
        return mean, std * 12**-0.5 if name.endswith("Attention.q.weight") else std


class TestFirst(T5Parity):
    """The first version: no gates, a tied head."""

    EXPECTED = {
        "family": "t5", "n_layers": 2, "hidden_size": 40, "head_size": 12, "is_gated": False,
        "activation": "relu", "is_head_tied": True, "logit_scale": 40**-0.5,
        "n_distance_buckets": 8, "max_distance": 12, "attention_scale": 1.0,
    }  # fmt: skip
    REFUSED = {
        "feed_forward_proj": "gelu",
        "dense_act_fn": "gelu_new",
        "is_gated_act": True,
        "is_encoder_decoder": False,
        "scale_decoder_outputs": False,
    }

    @classmethod
    def make_model(cls) -> Any:
        return transformers.T5ForConditionalGeneration(transformers.T5Config(**SIZES))


class TestGated(T5Parity):
    """Version 1.1 and FLAN-T5: gates, a head of its own, as many buckets as published ones."""

    EXPECTED = {
        "is_gated": True, "activation": "gelu_tanh", "is_head_tied": False, "logit_scale": 1.0,
        "n_distance_buckets": 32, "max_distance": 128,
    }  # fmt: skip

    @classmethod
    def make_model(cls) -> Any:
        sizes = {key: value for key, value in SIZES.items() if not key.startswith("relative")}
        config = transformers.T5Config(
            **sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=False
        )
        return transformers.T5ForConditionalGeneration(config)


@pytest.mark.parametrize(("n_buckets", "farthest"), [(32, 128), (8, 12), (64, 1000), (16, 9)])
@pytest.mark.parametrize("is_encoder", [False, True])
def test_distances_have_the_buckets_of_transformers(
    n_buckets: int, farthest: int, is_encoder: bool
) -> None:
    config = ModelConfig(
        "t5", 9, 8, 8, 1, 1, 1, 8, 9, 1e-6, n_distance_buckets=n_buckets, max_distance=farthest,
        stack="encoder" if is_encoder else "decoder",
    )  # fmt: skip
    attention = transformers.models.t5.modeling_t5.T5Attention
    behind = range(-farthest if is_encoder else 0, farthest + 1)
    offsets = torch.tensor(behind if is_encoder else [-i for i in behind])
    expected = attention._relative_position_bucket(offsets, is_encoder, n_buckets, farthest)
    np.testing.assert_array_equal(distance_buckets(config), expected.numpy())


LINES = ["the house is small", "a cat sat on the house", "small cats are tall", "translate it"] * 8
TEXTS = ["the cat is tall.", " a  small <extra_id_0> house </s> it", "", "<extra_id_9> \n sat"]


def test_a_spiece_model_gives_the_tokens_of_transformers(tmp_path: Path) -> None:
    """With the tokens that the class adds, and what texts end with."""
    spm = pytest.importorskip("sentencepiece", reason="needs the dev extra")
    made = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=made, vocab_size=27, model_type="unigram",
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2, num_threads=1,
    )  # fmt: skip
    (tmp_path / "spiece.model").write_bytes(made.getvalue())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"extra_ids": 10}))
    model = TestFirst.make_model()
    model.save_pretrained(tmp_path)
    theirs = transformers.T5Tokenizer(str(tmp_path / "spiece.model"), extra_ids=10, legacy=True)
    checkpoint = open_checkpoint(str(tmp_path))
    ours = Tokenizer.from_str(checkpoint.tokenizer_json())
    for text in TEXTS:
        assert ours.encode(text).ids == theirs(text).input_ids, text
    special = checkpoint.special
    assert (special.closing_ids, special.start_id, special.opening_ids) == ((1,), 0, ())
    assert special.eos_ids == (1,)
