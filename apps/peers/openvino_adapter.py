"""OpenVINO GenAI, through LLMPipeline, which reads GGUF files and folders of its own.

It offers whole generations only, so times come from its own metrics, and there is no verify pass.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

_N_DRAFTED = 5  # as in the project's samples
_NGRAM_SIZE = 3


class Model:
    """Pipelines on the CPU, one for each mode that was asked for."""

    def __init__(self, spec: dict[str, Any]) -> None:
        path = Path(spec["path"])
        self._path = path
        self._draft: str | None = spec.get("draft")
        self._threads: int = spec["threads"]
        self._ids: list[int] = spec["ids"]
        self._pipelines: dict[str, Any] = {}
        self._pipeline("plain")
        self.facts = {
            "through": f"openvino-genai {openvino_genai.__version__}, LLMPipeline",
            "format": "GGUF" if path.suffix == ".gguf" else f"folder {path.name}",
            "options": "enable_prefix_caching=False",
            "threads": spec["threads"],
            "modes": {
                "lookup": f"prompt_lookup=True, max_ngram_size={_NGRAM_SIZE}",
                "draft": "draft_model",
            },
            "n_drafted": _N_DRAFTED,
        }

    def prefill(self, depth: int, n: int) -> float | None:
        """Returns the time to the first token after n; prompts after others cannot be timed."""
        if depth:
            return None
        return float(self._run(self._ids[:n], 1).perf_metrics.get_ttft().mean / 1000)

    def decode(self, depth: int, n: int) -> float | None:
        """Returns the seconds for n greedy tokens after the first."""
        metrics = self._run(self._ids[: depth + 1], n + 1).perf_metrics
        return float(n * metrics.get_tpot().mean / 1000)

    def verify(self, depth: int, m: int) -> float | None:
        """Returns None: a pipeline does not show the logits of a pass."""
        return None

    def generate(
        self, ids: list[int], n: int, mode: str, n_drafted: int | None
    ) -> tuple[list[int], float, float]:
        """Returns n greedy tokens, the seconds to the first, and the seconds for the others."""
        result = self._run(ids, n, mode, n_drafted or _N_DRAFTED)
        first_ms = result.perf_metrics.get_ttft().mean
        all_ms = result.perf_metrics.get_generate_duration().mean
        return list(result.tokens[0]), first_ms / 1000, (all_ms - first_ms) / 1000

    def _run(self, ids: list[int], n: int, mode: str = "plain", n_drafted: int = 0) -> Any:
        tokens = np.array([ids], np.int64)
        inputs = openvino_genai.TokenizedInputs(
            openvino.Tensor(tokens), openvino.Tensor(np.ones_like(tokens))
        )
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = n
        config.do_sample = False
        config.ignore_eos = True
        if mode != "plain":
            config.num_assistant_tokens = n_drafted
        if mode == "lookup":
            config.max_ngram_size = _NGRAM_SIZE
        return self._pipeline(mode).generate(inputs, config)

    def _pipeline(self, mode: str) -> Any:
        if mode not in self._pipelines:
            options: dict[str, Any] = {"INFERENCE_NUM_THREADS": self._threads}
            # What LLMPipeline chooses by itself, but a prompt seen before must not be skipped.
            options["scheduler_config"] = openvino_genai.SchedulerConfig()
            options["scheduler_config"].max_num_batched_tokens = 2**31
            options["scheduler_config"].enable_prefix_caching = False
            if mode == "lookup":
                options["prompt_lookup"] = True
            elif mode == "draft":
                options["draft_model"] = self._load_draft()
            self._pipelines[mode] = openvino_genai.LLMPipeline(str(self._path), "CPU", **options)
        return self._pipelines[mode]

    def _load_draft(self) -> Any:
        """Returns the draft model; of a GGUF file the IR is made first, which alone is accepted."""
        if self._draft is None:
            raise ValueError("there is no draft model")
        path = Path(self._draft).resolve()
        if path.suffix != ".gguf":
            return openvino_genai.draft_model(str(path), "CPU", INFERENCE_NUM_THREADS=self._threads)
        with tempfile.TemporaryDirectory() as folder:
            link = Path(folder) / path.name
            link.symlink_to(path)
            openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
            return openvino_genai.draft_model(folder, "CPU", INFERENCE_NUM_THREADS=self._threads)


def open_model(spec: dict[str, Any]) -> Model:
    """Returns the model at ``path``, loaded."""
    return Model(spec)
