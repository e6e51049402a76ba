"""Hunyuan against transformers: heads are rotated, then normed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from family_parity import FamilyParity, transformers

from edgedec.models.config import LayerConfig

pytestmark = pytest.mark.parity

ALPHA, THETA = 20.0, 1e4 * 20.0 ** (12 / 10)


class TestParity(FamilyParity):
    EXPECTED = {"family": "hunyuan_v1_dense", "layers": (LayerConfig(56, 0.0),) * 4}
    ARCHITECTURE = "hunyuan-dense"
    METADATA = {"rope.freq_base": THETA}
    REFUSED = {"hidden_act": "gelu"}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.HunYuanDenseV1Config(
            **cls.SIZES, rope_scaling={"type": "dynamic", "alpha": ALPHA, "factor": 1.0}
        )
        return transformers.HunYuanDenseV1ForCausalLM(config)

    def test_base(self, toy: Any) -> None:
        from edgedec.export.checkpoints.checkpoint import open_checkpoint

        config = open_checkpoint(str(toy.folder)).config
        np.testing.assert_allclose(config.rope_theta, THETA, rtol=1e-12)
