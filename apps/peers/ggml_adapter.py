"""llama.cpp and ik_llama.cpp, through llama_decode: batches of tokens, logits where asked."""

from __future__ import annotations

import ctypes
import importlib
import time
from importlib import metadata
from typing import Any

import numpy as np

_UBATCH = 512  # both projects' default


class Model:
    """A GGUF file in a context of its own."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._is_ik = spec["runtime"] == "ik_llama.cpp"
        self._api: Any = importlib.import_module(
            "ik_llama_cpp._ctypes_api" if self._is_ik else "llama_cpp"
        )
        self._ids: list[int] = spec["ids"]
        self._n_past = 0
        if not self._is_ik:
            self._log = self._api.llama_log_callback(lambda level, text, user: None)
            self._api.llama_log_set(self._log, None)
        self._api.llama_backend_init()
        path = spec["path"].encode()
        self._model = self._api.llama_model_load_from_file(path, self._model_params())
        if not self._model:
            raise RuntimeError(f"{spec['runtime']} cannot load {spec['path']}")
        self._context = self._api.llama_init_from_model(self._model, self._context_params(spec))
        if not self._context:
            raise RuntimeError(f"{spec['runtime']} cannot make a context for {spec['path']}")
        self._batch = self._api.llama_batch_init(_UBATCH, 0, 1)
        self._n_vocab = self._vocabulary_size()
        self.facts = self._facts(spec)

    def prefill(self, depth: int, n: int) -> float | None:
        """Returns the seconds for n tokens after depth others, with logits of the last."""
        self._fill(depth)
        started_s = time.perf_counter()
        self._feed(self._ids[depth : depth + n], logits_from=n - 1)
        self._logits(-1)
        return time.perf_counter() - started_s

    def decode(self, depth: int, n: int) -> float | None:
        """Returns the seconds for n greedy tokens."""
        self._fill(depth)
        token = self._ids[depth]
        started_s = time.perf_counter()
        for _ in range(n):
            self._feed([token], logits_from=0)
            token = int(self._logits(-1).argmax())
        return time.perf_counter() - started_s

    def verify(self, depth: int, m: int) -> float | None:
        """Returns the seconds for a pass over m tokens with the logits of every row."""
        self._fill(depth)
        started_s = time.perf_counter()
        self._feed(self._ids[depth : depth + m], logits_from=0)
        self._logits(m - 1)
        return time.perf_counter() - started_s

    def _fill(self, depth: int) -> None:
        """Makes the first ``depth`` tokens, and no more, the contents of the KV cache."""
        if self._n_past < depth:
            self._drop(0)
            self._feed(self._ids[:depth], logits_from=depth)
        self._drop(depth)

    def _drop(self, depth: int) -> None:
        if self._is_ik:
            remove = self._api._lib.llama_kv_cache_seq_rm
            remove.argtypes = (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)
            remove.restype = ctypes.c_bool
            remove(self._context, 0, depth, -1)
        else:
            memory = self._api.llama_get_memory(self._context)
            self._api.llama_memory_seq_rm(memory, 0, depth, -1)
        self._n_past = depth

    def _feed(self, ids: list[int], logits_from: int) -> None:
        """Runs tokens in batches; those from index ``logits_from`` on get logits."""
        batch = self._batch
        for start in range(0, len(ids), _UBATCH):
            chunk = ids[start : start + _UBATCH]
            batch.n_tokens = len(chunk)
            for i, token in enumerate(chunk):
                batch.token[i] = token
                batch.pos[i] = self._n_past + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = start + i >= logits_from
            if status := self._api.llama_decode(self._context, batch):
                raise RuntimeError(f"llama_decode returned {status}")
            self._n_past += len(chunk)

    def _logits(self, row: int) -> Any:
        pointer = self._api.llama_get_logits_ith(self._context, row)
        address = ctypes.addressof(pointer.contents)
        return np.ctypeslib.as_array((ctypes.c_float * self._n_vocab).from_address(address))

    def _model_params(self) -> Any:
        params = self._api.llama_model_default_params()
        params.n_gpu_layers = 0
        if self._is_ik:  # its interleaved layouts are made at load, and need memory of their own
            params.repack_tensors = True
            params.use_mmap = False
        return params

    def _context_params(self, spec: dict[str, Any]) -> Any:
        params = self._api.llama_context_default_params()
        params.n_ctx = spec["context"]
        params.n_batch = max(spec["context"], _UBATCH)
        params.n_ubatch = _UBATCH
        params.n_threads = params.n_threads_batch = spec["threads"]
        params.offload_kqv = False
        return params

    def _vocabulary_size(self) -> int:
        vocabulary = self._api.llama_model_get_vocab(self._model)
        return int(self._api.llama_vocab_n_tokens(vocabulary))

    def _facts(self, spec: dict[str, Any]) -> dict[str, Any]:
        text = ctypes.create_string_buffer(256)
        self._api.llama_model_desc(self._model, text, 256)
        package = "ik-llama-cpp-python" if self._is_ik else "llama-cpp-python"
        facts: dict[str, Any] = {
            "through": f"{package} {metadata.version(package)}, llama_decode",
            "format": text.value.decode(errors="replace"),
            "threads": spec["threads"],
        }
        if self._is_ik:
            facts["options"] = "repack_tensors"
        information = self._api._lib.llama_print_system_info if self._is_ik else None
        if information is not None:
            information.restype = ctypes.c_char_p
            facts["system"] = information().decode(errors="replace")
        else:
            facts["system"] = self._api.llama_print_system_info().decode(errors="replace")
        return facts


def open_model(spec: dict[str, Any]) -> Model:
    """Returns the GGUF file at ``path``, loaded by the runtime named ``runtime``."""
    return Model(spec)
