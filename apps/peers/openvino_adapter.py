"""OpenVINO GenAI, through LLMPipeline, which reads GGUF files and folders of its own.

It offers whole generations only, so times come from its own metrics, and there is no verify pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai


class Model:
    """A pipeline on the CPU."""

    def __init__(self, spec: dict[str, Any]) -> None:
        path = Path(spec["path"])
        self._pipeline = openvino_genai.LLMPipeline(
            str(path), "CPU", INFERENCE_NUM_THREADS=spec["threads"]
        )
        self._ids: list[int] = spec["ids"]
        self._n_runs = 0
        self.facts = {
            "through": f"openvino-genai {openvino_genai.__version__}, LLMPipeline",
            "format": "GGUF" if path.suffix == ".gguf" else f"folder {path.name}",
            "threads": spec["threads"],
        }

    def prefill(self, depth: int, n: int) -> float | None:
        """Returns the time to the first token after n; prompts after others cannot be timed."""
        return None if depth else self._generate(n, 1).get_ttft().mean / 1000

    def decode(self, depth: int, n: int) -> float | None:
        """Returns the seconds for n greedy tokens after the first."""
        metrics = self._generate(depth + 1, n + 1)
        return float(n * metrics.get_tpot().mean / 1000)

    def verify(self, depth: int, m: int) -> float | None:
        """Returns None: a pipeline does not show the logits of a pass."""
        return None

    def _generate(self, n_prompt: int, n_new: int) -> Any:
        self._n_runs += 1
        # Another first token each time: the pipeline keeps prompts it has seen, and would skip it.
        first = self._ids[self._n_runs % len(self._ids)]
        ids = np.array([[first, *self._ids[1:n_prompt]]], np.int64)
        mask = np.ones_like(ids)
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(mask))
        return self._pipeline.generate(
            inputs, max_new_tokens=n_new, do_sample=False, ignore_eos=True
        ).perf_metrics


def open_model(spec: dict[str, Any]) -> Model:
    """Returns the model at ``path``, loaded."""
    return Model(spec)
