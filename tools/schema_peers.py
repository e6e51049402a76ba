"""What grammars of JSON schemas cost: edgedec's, xgrammar's and llama.cpp's, over the same answers.

    python tools/schema_peers.py SCHEMAS.jsonl SAMPLES.jsonl BUNDLE MODEL.gguf

SAMPLES.jsonl is what `edgedec eval --task json_schema -o` wrote. Each grammar is compiled, and the
tokens of a schema's answer pass through it: a mask over all logits for every token. One thread.
llama.cpp and xgrammar have to be installed (`pip install xgrammar llama-cpp-python`). An answer
that a grammar has not followed after five seconds counts with what it took until then.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np

from edgedec.models.errors import EdgedecError
from edgedec.models.manifest import TOKENIZER_NAME, read_manifest
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.sampling.grammar import Grammars
from edgedec.runtime.sampling.sampling import History, edit, greedy
from edgedec.runtime.text.tokenizer import Tokenizer

_SECONDS = 5.0
_REFUSALS = (
    AssertionError, AttributeError, EdgedecError, KeyError, NotImplementedError, RecursionError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What the engines raise about schemas that they do not know."""


class Matcher(Protocol):
    """A compiled schema at a place in an answer."""

    def mask(self) -> None:
        """Forbids tokens in a row of logits."""

    def accept(self, token: int) -> bool:
        """Goes on behind ``token``; says whether it is allowed."""


Compile = Callable[[str], Matcher]


@dataclass
class Counts:
    """What an engine did over all schemas. token_ms: an average for each schema."""

    compile_ms: list[float]
    token_ms: list[float]
    n_refused: int = 0
    n_whole: int = 0


def run(compiled: Compile, schemas: dict[str, str], answers: dict[str, list[int]]) -> Counts:
    """Returns what an engine takes; answers that it does not allow count until there."""
    counts = Counts([], [])
    for name, schema in schemas.items():
        started_s = time.perf_counter()
        try:
            matcher = compiled(schema)
            matcher.mask()
        except _REFUSALS:
            counts.n_refused += 1
            continue
        counts.compile_ms.append((time.perf_counter() - started_s) * 1000)
        started_s, n_tokens = time.perf_counter(), 0
        for token in answers.get(name, ()):
            matcher.mask()
            n_tokens += 1
            if not matcher.accept(token) or time.perf_counter() - started_s > _SECONDS:
                break
        else:
            counts.n_whole += name in answers
        if n_tokens:
            counts.token_ms.append((time.perf_counter() - started_s) * 1000 / n_tokens)
    return counts


class Ours:
    """edgedec's mask, with the edit of the logits and the choice."""

    def __init__(self, grammars: Grammars, schema: str, n_ids: int) -> None:
        mask = grammars.mask(GenerationConfig(json_schema=schema), frozenset())
        assert mask is not None
        self._mask = mask
        self._mask.begin(())
        self._logits = np.zeros(n_ids, np.float32)
        self._allowed: Any = None

    def mask(self) -> None:
        self._allowed = self._mask.row_after(())
        if self._allowed is not None and self._allowed.any():
            greedy(edit(self._logits, SamplingConfig(), History(), self._allowed))

    def accept(self, token: int) -> bool:
        is_allowed = self._allowed is not None and bool(self._allowed[token])
        if is_allowed:
            self._mask.accept(token)
        return is_allowed


class XGrammar:
    """xgrammar's bit mask."""

    def __init__(self, compiler: Any, schema: str, n_ids: int) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(schema))
        self._bits = xgrammar.allocate_token_bitmask(1, n_ids)

    def mask(self) -> None:
        self._matcher.fill_next_token_bitmask(self._bits)

    def accept(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))


class LlamaCpp:
    """llama.cpp's sampler of a grammar, over a whole row of logits."""

    def __init__(self, vocabulary: Any, schema: str, n_ids: int) -> None:
        import llama_cpp
        from llama_cpp.llama_grammar import json_schema_to_gbnf

        self._api = llama_cpp
        text = json_schema_to_gbnf(schema).encode()
        self._grammar = llama_cpp.llama_sampler_init_grammar(vocabulary, text, b"root")
        if not self._grammar:
            raise ValueError("refused")
        self._cells = (llama_cpp.llama_token_data * n_ids)()
        for i in range(n_ids):
            self._cells[i].id = i
        self._view = np.ctypeslib.as_array(self._cells)
        self._row = llama_cpp.llama_token_data_array(self._cells, n_ids, -1, False)

    def mask(self) -> None:
        self._view["logit"] = 0.0
        self._api.llama_sampler_apply(self._grammar, ctypes.byref(self._row))

    def accept(self, token: int) -> bool:
        if not np.isfinite(self._view["logit"][token]):
            return False
        self._api.llama_sampler_accept(self._grammar, token)
        return True

    def __del__(self) -> None:
        if getattr(self, "_grammar", None):
            self._api.llama_sampler_free(self._grammar)


def engines(bundle: Path, model: Path, codec: Tokenizer) -> dict[str, Compile]:
    """Returns how each engine that is installed compiles a schema."""
    n_ids = read_manifest(bundle).target.config.vocab_size
    grammars = Grammars(codec, n_ids)
    grammars.mask(GenerationConfig(json_schema="true"), frozenset())
    engines_: dict[str, Compile] = {"edgedec": lambda schema: Ours(grammars, schema, n_ids)}
    try:
        import xgrammar

        spelt = codec.spellings()
        tokens = [spelt.get(i, b"") for i in range(n_ids)]
        stops = list(read_manifest(bundle).stop_token_ids)
        info = xgrammar.TokenizerInfo(tokens, stop_token_ids=stops)
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        engines_["xgrammar"] = lambda schema: XGrammar(compiler, schema, n_ids)
    except ImportError as error:
        print(f"without xgrammar: {error}")
    try:
        import llama_cpp

        loaded = llama_cpp.Llama(str(model), vocab_only=True, verbose=False)
        vocabulary = llama_cpp.llama_model_get_vocab(loaded.model)
        engines_["llama.cpp"] = lambda schema: LlamaCpp(vocabulary, schema, n_ids)
        engines_["llama.cpp"].loaded = loaded  # type: ignore[attr-defined]  # while it is in use
    except ImportError as error:
        print(f"without llama.cpp: {error}")
    return engines_


def read_answers(path: Path, encode: Callable[[str], list[int]]) -> dict[str, list[int]]:
    """Returns the tokens of whole, valid answers, by schema."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["name"]: encode(row["answer"]) for row in rows
            if row["kind"] == "sample" and row["metrics"].get("valid") == 1}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row of a table for each engine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("schemas", "samples", "bundle", "model"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--only", help="one engine: edgedec, xgrammar or llama.cpp")
    options = parser.parse_args(arguments)
    codec = Tokenizer.load(options.bundle / TOKENIZER_NAME)
    rows = [json.loads(line) for line in options.schemas.read_text(encoding="utf-8").splitlines()]
    schemas = {row["unique_id"]: row["json_schema"] for row in rows}
    answers = read_answers(options.samples, codec.encode)
    n_tokens = sum(len(row) for row in answers.values())
    print(f"{len(schemas)} schemas, {len(answers)} answers of {n_tokens} tokens")
    print("| engine | compile | follow all of their answer | ms a token, average | median | most |"
          " ms to compile, median |\n|---|---|---|---|---|---|---|")  # fmt: skip
    for name, compiled in engines(options.bundle, options.model, codec).items():
        if options.only in (None, name):
            counts = run(compiled, schemas, answers)
            ms = counts.token_ms
            print(f"| {name} | {len(schemas) - counts.n_refused} | {counts.n_whole} | "
                  f"{sum(ms) / len(ms):.3f} | {median(ms):.3f} | {max(ms):.3f} | "
                  f"{median(counts.compile_ms):.1f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
