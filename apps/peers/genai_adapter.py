"""onnxruntime-genai, through its generator. It loads model folders of its own, not GGUF files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og

_N_DRAFTED = 4  # its own default
_NGRAM_SIZE = 3


class Model:
    """A model folder with one generator for each mode, rewound between measurements."""

    def __init__(self, spec: dict[str, Any]) -> None:
        path = Path(spec["path"])
        if not (path / "genai_config.json").is_file():
            raise ValueError(
                f"onnxruntime-genai loads folders with a genai_config.json, not {path.name}: "
                "make one with `python -m onnxruntime_genai.models.builder -i HF_FOLDER -o FOLDER "
                "-p int4 -e cpu` (it needs torch and transformers 5), then name it with "
                "--peer-model onnxruntime-genai=FOLDER"
            )
        options = {"intra_op_num_threads": spec["threads"]}
        config = og.Config(str(path))
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = og.Model(config)
        self._ids: list[int] = spec["ids"]
        self._context: int = spec["context"]
        self._generators: dict[tuple[str, int], Any] = {}
        self._generator = self._make("plain", 0)
        self._n_past = 0
        self.facts = {
            "through": f"onnxruntime-genai {og.__version__}, Generator",
            "format": f"folder {path.name}, {_megabytes(path)} MB",
            "threads": spec["threads"],
            "modes": {"lookup": f"ngram_size={_NGRAM_SIZE}"},
            "n_drafted": _N_DRAFTED,
        }

    def prefill(self, depth: int, n: int) -> float | None:
        """Returns the seconds for n tokens after depth others."""
        self._fill(depth)
        return self._feed(self._ids[depth : depth + n])

    def decode(self, depth: int, n: int) -> float | None:
        """Returns the seconds for n greedy tokens, each chosen and then computed."""
        self._fill(depth)
        self._feed(self._ids[depth : depth + 1])
        self._generator.generate_next_token()
        started_s = time.perf_counter()
        for _ in range(n):
            self._generator.generate_next_token()
        self._n_past += n
        return time.perf_counter() - started_s

    def verify(self, depth: int, m: int) -> float | None:
        """Returns the seconds for a pass over m tokens, whose graph yields logits of every row."""
        self._fill(depth)
        return self._feed(self._ids[depth : depth + m])

    def generate(
        self, ids: list[int], n: int, mode: str, n_drafted: int | None
    ) -> tuple[list[int], float, float]:
        """Returns n greedy tokens, the seconds to the first, and the seconds for the others."""
        generator = self._make(mode, n_drafted or _N_DRAFTED)
        generator.rewind_to(0)
        started_s = time.perf_counter()
        generator.append_tokens(np.array([ids], np.int32))
        generator.generate_next_token()
        tokens = [int(generator.get_next_tokens()[0])]
        first_s = time.perf_counter()
        for _ in range(n - 1):
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
        return tokens, first_s - started_s, time.perf_counter() - first_s

    def _make(self, mode: str, n_drafted: int) -> Any:
        key = (mode, n_drafted if mode == "lookup" else 0)
        if key not in self._generators:
            parameters = og.GeneratorParams(self._model)
            # No end token may be chosen: a generator that is done answers at once, for nothing.
            length = self._context + 8
            parameters.set_search_options(do_sample=False, max_length=length, min_length=length)
            if mode == "lookup":
                parameters.set_speculative_options(
                    ngram_size=_NGRAM_SIZE, max_draft_tokens=n_drafted
                )
            self._generators[key] = og.Generator(self._model, parameters)
        return self._generators[key]

    def _fill(self, depth: int) -> None:
        if self._n_past < depth:
            self._generator.rewind_to(0)
            self._feed(self._ids[:depth])
        self._generator.rewind_to(depth)
        self._n_past = depth

    def _feed(self, ids: list[int]) -> float:
        tokens = np.array([ids], np.int32)
        started_s = time.perf_counter()
        self._generator.append_tokens(tokens)
        self._n_past += len(ids)
        return time.perf_counter() - started_s


def _megabytes(folder: Path) -> int:
    """Returns the size of the folder's graphs and weights."""
    return sum(file.stat().st_size for file in folder.glob("*.onnx*")) // 10**6


def open_model(spec: dict[str, Any]) -> Model:
    """Returns the model folder at ``path``, loaded."""
    return Model(spec)
