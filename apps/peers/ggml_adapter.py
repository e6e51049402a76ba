"""llama.cpp and ik_llama.cpp, through llama_decode: batches of tokens, logits where asked.

Speculation is the usual loop over that function: a fixed number of drafted tokens in a chain, one
pass of the target model over them, the longest prefix it would have chosen itself is kept.
"""

from __future__ import annotations

import ctypes
import importlib
import time
from importlib import metadata
from itertools import takewhile
from typing import Any

import numpy as np

_UBATCH = 512  # both projects' default
_N_DRAFTED = 4
_NGRAM_SIZES = (3, 2)  # single tokens repeat too often to be worth a row


class Context:
    """A GGUF file in a context of its own. n_texts: that it holds, each as long as ``spec`` says.

    model: the file where it was loaded already. ``kv_type`` in ``spec``: of the KV cache, as ggml
    counts types.
    """

    def __init__(
        self, api: Any, path: str, spec: dict[str, Any], n_texts: int = 1, model: Any = None
    ) -> None:
        self._api = api
        self._is_ik = spec["runtime"] == "ik_llama.cpp"
        self.model = model or api.llama_model_load_from_file(path.encode(), self._model_params())
        if not self.model:
            raise RuntimeError(f"{spec['runtime']} cannot load {path}")
        self._context = api.llama_init_from_model(self.model, self._context_params(spec, n_texts))
        if not self._context:
            raise RuntimeError(f"{spec['runtime']} cannot make a context for {path}")
        self._batch = api.llama_batch_init(_UBATCH, 0, 1)
        self.n_vocab = int(api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model)))
        self.n_past = 0

    def drop(self, depth: int) -> None:
        """Drops all tokens after the first ``depth``."""
        if self._is_ik:
            remove = self._api._lib.llama_kv_cache_seq_rm
            remove.argtypes = (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)
            remove.restype = ctypes.c_bool
            remove(self._context, 0, depth, -1)
        else:
            memory = self._api.llama_get_memory(self._context)
            self._api.llama_memory_seq_rm(memory, 0, depth, -1)
        self.n_past = depth

    def feed(self, ids: list[int], logits_from: int) -> None:
        """Runs tokens in batches; those from index ``logits_from`` on get logits."""
        batch = self._batch
        for start in range(0, len(ids), _UBATCH):
            chunk = ids[start : start + _UBATCH]
            batch.n_tokens = len(chunk)
            for i, token in enumerate(chunk):
                batch.token[i] = token
                batch.pos[i] = self.n_past + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = start + i >= logits_from
            if status := self._api.llama_decode(self._context, batch):
                raise RuntimeError(f"llama_decode returned {status}")
            self.n_past += len(chunk)

    def clear(self) -> None:
        """Drops all tokens of all texts."""
        if self._is_ik:
            self._api._lib.llama_kv_cache_clear(ctypes.c_void_p(self._context))
        else:
            self._api.llama_memory_clear(self._api.llama_get_memory(self._context), False)

    def feed_texts(self, tokens: list[int], position: int) -> None:
        """Runs one batch with the next token of each text; all get logits."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, True
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, i
        if status := self._api.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {status}")

    def likeliest(self, row: int) -> int:
        """Returns the token with the largest logit of a row; -1 is the last row."""
        return int(self.logits(row).argmax())

    def logits(self, row: int) -> Any:
        """Returns the logits of a row of the last batch."""
        pointer = self._api.llama_get_logits_ith(self._context, row)
        address = ctypes.addressof(pointer.contents)
        return np.ctypeslib.as_array((ctypes.c_float * self.n_vocab).from_address(address))

    def _model_params(self) -> Any:
        params = self._api.llama_model_default_params()
        params.n_gpu_layers = 0
        if self._is_ik:  # its interleaved layouts are made at load, and need memory of their own
            params.repack_tensors = True
            params.use_mmap = False
        return params

    def _context_params(self, spec: dict[str, Any], n_texts: int) -> Any:
        params = self._api.llama_context_default_params()
        params.n_ctx = spec["context"] * n_texts
        params.n_seq_max = n_texts
        if self._is_ik and n_texts > 1:
            params.flash_attn = False  # which refuses batches of several texts
        params.n_batch = max(spec["context"], _UBATCH)
        params.n_ubatch = _UBATCH
        params.n_threads = params.n_threads_batch = spec["threads"]
        params.offload_kqv = False
        if "kv_type" in spec:
            params.type_k = params.type_v = spec["kv_type"]
            params.flash_attn_type = 1  # others have no quantised values
        return params


class ModelDrafts:
    """Chains of the likeliest tokens of a second model."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def begin(self, tokens: list[int]) -> None:
        """Computes a prompt."""
        self._context.drop(0)
        self._context.feed(tokens, logits_from=len(tokens))

    def propose(self, tokens: list[int], n: int) -> list[int]:
        """Returns ``n`` tokens after ``tokens``, which begin as in the call before."""
        context, drafts = self._context, []
        # Behind the drafts that were accepted lie those that were not.
        context.drop(min(context.n_past, len(tokens) - 1))
        ids = tokens[context.n_past :]
        for _ in range(n):
            context.feed(ids, logits_from=len(ids) - 1)
            drafts.append(context.likeliest(-1))
            ids = drafts[-1:]
        return drafts


class CopiedDrafts:
    """The tokens that followed the latest earlier occurrence of the last few."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}
        self._n_seen = 0

    def begin(self, tokens: list[int]) -> None:
        """Forgets everything before a prompt."""
        self._ends.clear()
        self._n_seen = 0

    def propose(self, tokens: list[int], n: int) -> list[int]:
        """Returns at most ``n`` tokens after ``tokens``, which begin as in the call before."""
        for end in range(self._n_seen + 1, len(tokens)):
            for size in _NGRAM_SIZES:
                if end >= size:
                    self._ends[tuple(tokens[end - size : end])] = end
        self._n_seen = max(self._n_seen, len(tokens) - 1)
        for size in _NGRAM_SIZES:
            if (end := self._ends.get(tuple(tokens[-size:]), 0)) and len(tokens) > size:
                return tokens[end : end + n]
        return []


def generate(
    target: Any, drafter: Any, ids: list[int], n: int, n_drafted: int, n_known: int = 0
) -> tuple[list[int], float, float]:
    """Returns n greedy tokens, the seconds to the first, and the seconds for the others.

    target: a `Context`, whose first ``n_known`` tokens are those of ``ids``. drafter: proposes up
    to ``n_drafted`` tokens a round; None for one by one.
    """
    tokens, end = list(ids), len(ids) + n
    started_s = time.perf_counter()
    target.drop(n_known)
    target.feed(tokens[n_known:], logits_from=len(tokens) - n_known - 1)
    if drafter is not None:
        drafter.begin(tokens)
    tokens.append(target.likeliest(-1))
    first_s = time.perf_counter()
    while len(tokens) < end:
        room = min(n_drafted, end - len(tokens) - 1)
        drafts = drafter.propose(tokens, room) if drafter is not None and room else []
        tokens += verify(target, tokens[-1], drafts)
    return tokens[len(ids) :], first_s - started_s, time.perf_counter() - first_s


def verify(target: Any, last: int, drafts: list[int]) -> list[int]:
    """Returns the tokens after ``last``: accepted drafts, and one more."""
    n_past, chosen = target.n_past, []
    target.feed([last, *drafts], logits_from=0)
    for row in range(len(drafts) + 1):
        chosen.append(target.likeliest(row))
        if chosen != drafts[: row + 1]:
            break
    if drafts:
        target.drop(n_past + len(chosen))
    return chosen


class Model:
    """A target model, and what drafts for it."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._is_ik = spec["runtime"] == "ik_llama.cpp"
        self._api: Any = importlib.import_module(
            "ik_llama_cpp._ctypes_api" if self._is_ik else "llama_cpp"
        )
        self._spec = spec
        self._ids: list[int] = spec["ids"]
        self._held: list[int] = []  # by the KV cache, as far as that reaches
        if not self._is_ik:
            self._log = self._api.llama_log_callback(lambda level, text, user: None)
            self._api.llama_log_set(self._log, None)
        self._api.llama_backend_init()
        self._target = Context(self._api, spec["path"], spec)
        self._drafters: dict[str, Any] = {}
        self._several: dict[int, Context] = {}
        self.facts = self._facts(spec)

    def prefill(self, depth: int, n: int) -> float | None:
        """Returns the seconds for n tokens after depth others, with logits of the last."""
        self._fill(depth)
        started_s = time.perf_counter()
        self._target.feed(self._ids[depth : depth + n], logits_from=n - 1)
        self._target.logits(-1)
        return time.perf_counter() - started_s

    def decode(self, depth: int, n: int) -> float | None:
        """Returns the seconds for n greedy tokens."""
        self._fill(depth)
        token = self._ids[depth]
        started_s = time.perf_counter()
        for _ in range(n):
            self._target.feed([token], logits_from=0)
            token = self._target.likeliest(-1)
        return time.perf_counter() - started_s

    def verify(self, depth: int, m: int) -> float | None:
        """Returns the seconds for a pass over m tokens with the logits of every row."""
        self._fill(depth)
        started_s = time.perf_counter()
        self._target.feed(self._ids[depth : depth + m], logits_from=0)
        self._target.logits(m - 1)
        return time.perf_counter() - started_s

    def decode_texts(self, n_texts: int, n: int) -> float | None:
        """Returns the seconds for n greedy tokens of each of several texts at once."""
        if n_texts not in self._several:
            self._several[n_texts] = Context(
                self._api, self._spec["path"], self._spec, n_texts, self._target.model
            )
        context, tokens = self._several[n_texts], self._ids[:n_texts]
        context.clear()
        started_s = time.perf_counter()
        for position in range(n):
            context.feed_texts(tokens, position)
            tokens = [context.likeliest(row) for row in range(n_texts)]
        return time.perf_counter() - started_s

    def generate(
        self, ids: list[int], n: int, mode: str, n_drafted: int | None
    ) -> tuple[list[int], float, float]:
        """Returns n greedy tokens, the seconds to the first, and the seconds for the others."""
        self._held = []
        return generate(self._target, self._drafter(mode), ids, n, n_drafted or _N_DRAFTED)

    def go_on(
        self, ids: list[int], n: int, mode: str, n_drafted: int | None
    ) -> tuple[list[int], float, float]:
        """As `generate`, but what the KV cache holds of ``ids`` is not computed again."""
        held = self._held[: self._target.n_past]
        known = takewhile(lambda pair: pair[0] == pair[1], zip(held, ids[:-1], strict=False))
        n_known = sum(1 for _ in known)
        tokens = generate(
            self._target, self._drafter(mode), ids, n, n_drafted or _N_DRAFTED, n_known
        )
        self._held = [*ids, *tokens[0]]
        return tokens

    def _drafter(self, mode: str) -> Any:
        if mode == "plain":
            return None
        if mode not in self._drafters:
            self._drafters[mode] = CopiedDrafts() if mode == "lookup" else self._load_draft()
        return self._drafters[mode]

    def _load_draft(self) -> ModelDrafts:
        if not self._spec.get("draft"):
            raise ValueError("there is no draft model")
        draft = Context(self._api, self._spec["draft"], self._spec)
        if draft.n_vocab > self._target.n_vocab:
            raise ValueError(
                f"the draft model has {draft.n_vocab} tokens, expected at most "
                f"{self._target.n_vocab}, those of the target model"
            )
        return ModelDrafts(draft)

    def _fill(self, depth: int) -> None:
        """Makes the first ``depth`` tokens, and no more, the contents of the KV cache."""
        if self._target.n_past < depth:
            self._target.drop(0)
            self._target.feed(self._ids[:depth], logits_from=depth)
        self._target.drop(depth)

    def _facts(self, spec: dict[str, Any]) -> dict[str, Any]:
        text = ctypes.create_string_buffer(256)
        self._api.llama_model_desc(self._target.model, text, 256)
        package = "ik-llama-cpp-python" if self._is_ik else "llama-cpp-python"
        loop = "a loop over llama_decode with chains of fixed length"
        facts: dict[str, Any] = {
            "through": f"{package} {metadata.version(package)}, llama_decode",
            "format": text.value.decode(errors="replace"),
            "threads": spec["threads"],
            "modes": {
                "lookup": f"{loop}, copied from the latest earlier occurrence of the last "
                f"{' or '.join(map(str, _NGRAM_SIZES))} tokens",
                "draft": f"{loop}, the likeliest tokens of the draft model in a second context",
            },
            "n_drafted": _N_DRAFTED,
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
