"""What a smaller KV cache changes: two bundles of a model read the same text, pass by pass.

python tools/kv_divergence.py float16.edgedec k5v4.edgedec text.txt --tokens 2048
python tools/kv_divergence.py float16.edgedec k5v4.edgedec text.txt --tokens 16384 --needles 10

With ``--needles``, numbers are hidden in the text, evenly spaced, and then asked for. With
``--rounded-session``, the first bundle reads once more, and a session file with rounded rows keeps
the tokens before those that count. With ``--gguf``, llama.cpp reads the text, too: its KV cache of
q4_0 against its own of float16.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import edgedec
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.session_file import Expected, SavedModel, read_states, write_states
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.tokenizer import Tokenizer

Float64 = npt.NDArray[np.float64]

NAMES = (
    *("Oslo", "Lima", "Cairo", "Kyoto", "Quito", "Delhi", "Paris", "Minsk", "Dakar", "Sofia"),
    *("Hanoi", "Turin", "Perth", "Accra", "Bergen", "Havana", "Tunis", "Riga", "Bonn", "Doha"),
)
"""Of which numbers are hidden in the text."""


@dataclass(frozen=True)
class Question:
    """What continues the text, and the tokens that are right after it."""

    tokens: Sequence[int]
    answer: Sequence[int]


@dataclass(frozen=True)
class Reading:
    """What one bundle made of the text.

    log_probabilities: natural ones after the last tokens [n_scored, vocabulary]. mb: of KV cache.
    n_found: questions that greedy decoding answers.
    """

    log_probabilities: Float64
    mb: float
    n_found: int


def read(
    bundle: Path,
    tokens: Sequence[int],
    n_scored: int,
    n_rows: int,
    questions: Sequence[Question] = (),
    session: Path | None = None,
) -> Reading:
    """Returns what the bundle predicts after the last ``n_scored`` tokens.

    n_rows: of a pass. Each pass writes its rows to the KV cache and reads the earlier ones there.
    session: file in which rounded rows of the tokens before those are kept meanwhile.
    """
    options = edgedec.EngineOptions(context=len(tokens) + 64)
    with edgedec.load(bundle, options) as engine:
        sequence = engine.new_sequence()
        scored = []
        for begin in range(0, len(tokens), n_rows):
            if session is not None and begin == len(tokens) - n_scored:
                keep(sequence, session)
            part = tokens[begin : begin + n_rows]
            first = max(0, len(tokens) - n_scored - begin)  # the first row that counts
            rows = range(min(first, len(part)), len(part))
            logits = sequence.forward(TokenTree.chain(part), rows).logits
            sequence.commit(range(len(part)))
            if len(rows):
                scored.append(log_softmax(logits[-len(rows) :].astype(np.float64)))
        mb = sequence.nbytes / 1e6
        n_found = sum(is_answered(sequence, question) for question in questions)
        return Reading(np.concatenate(scored), mb, n_found)


def keep(sequence: TokenSequence, path: Path) -> None:
    """Writes the rows of ``sequence`` to ``path``, rounded, and reads them; prints the times."""
    state, n_tokens = sequence.snapshot(), sequence.n_tokens
    begin = time.perf_counter()
    write_states(path, {"target": SavedModel("", state)}, is_rounded=True)
    written = time.perf_counter()
    expected = Expected("", n_tokens, max(state.tokens) + 1, state.nbytes, sequence.layout)
    kept = read_states(path, {"target": expected})["target"].state
    read_s = time.perf_counter() - written
    n_bytes = path.stat().st_size
    print(
        f"session of {n_tokens} tokens: {n_bytes / 1e6:.2f} MB, {n_bytes / state.nbytes:.3f} of "
        f"the rows, written in {written - begin:.2f} s, read in {read_s:.3f} s"
    )
    sequence.truncate(0)
    sequence.restore(kept)


def read_with_llama_cpp(
    gguf: Path, kv_type: str, tokens: Sequence[int], n_scored: int, n_rows: int
) -> Float64:
    """Returns what llama.cpp predicts after the last ``n_scored`` tokens, as `read` does."""
    import llama_cpp  # of the extra `peers`

    from edgedec.apps.peers.ggml_adapter import Context

    spec = {
        "runtime": "llama.cpp",
        "context": len(tokens) + 64,
        "threads": os.cpu_count() or 1,
        "kv_type": getattr(llama_cpp, f"GGML_TYPE_{kv_type.upper()}"),
    }
    llama_cpp.llama_backend_init()
    context = Context(llama_cpp, str(gguf), spec)
    n_rows = min(n_rows, 512)  # of its largest batch
    first = len(tokens) - n_scored
    for begin in range(0, first, n_rows):
        context.feed(list(tokens[begin : min(begin + n_rows, first)]), logits_from=n_rows)
    scored = []
    for begin in range(first, len(tokens), n_rows):
        part = list(tokens[begin : begin + n_rows])
        context.feed(part, logits_from=0)
        rows = np.stack([context.logits(row) for row in range(len(part))])
        scored.append(log_softmax(rows.astype(np.float64)))
    return np.concatenate(scored)


def is_answered(sequence: TokenSequence, question: Question) -> bool:
    """Returns whether greedy decoding gives the answer; leaves the sequence as it was."""
    n_before = sequence.n_tokens
    part, is_right = list(question.tokens), True
    for expected in question.answer:
        logits = sequence.forward(TokenTree.chain(part), [len(part) - 1]).logits
        sequence.commit(range(len(part)))
        is_right = is_right and int(logits[-1].argmax()) == expected
        part = [expected]
    sequence.truncate(n_before)
    return is_right


def hidden(
    tokenizer: Tokenizer, text: Sequence[int], n_tokens: int, n_needles: int
) -> tuple[list[int], list[Question]]:
    """Returns the first tokens of ``text`` with a number hidden in each part, and the questions."""
    numbers = np.random.default_rng(0).integers(10000, 100000, n_needles)
    pairs = list(zip(NAMES[:n_needles], numbers.tolist(), strict=True))
    needles = [tokenizer.encode(f" The secret number of {n} is {i}. ") for n, i in pairs]
    n_plain = n_tokens - sum(map(len, needles))
    cuts = np.linspace(0, n_plain, n_needles + 1).astype(int).tolist()
    mixed: list[int] = []
    for start, stop, needle in zip(cuts, cuts[1:], needles, strict=False):
        middle = (start + stop) // 2
        mixed += [*text[start:middle], *needle, *text[middle:stop]]
    questions = []
    for name, number in pairs:
        question = tokenizer.encode(f" The secret number of {name} is")
        whole = tokenizer.encode(f" The secret number of {name} is {number}.")
        questions.append(Question(question, whole[len(question) : -1]))
    return mixed or list(text[:n_tokens]), questions


def log_softmax(logits: Float64) -> Float64:
    """Returns natural log-probabilities, row by row. Shape: that of ``logits``."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Float64 = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def main() -> None:
    """Reads the command line, and prints a line for each bundle."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("exact", type=Path, help="bundle with a float16 KV cache")
    parser.add_argument("smaller", type=Path, nargs="*", help="bundles of the same model")
    parser.add_argument("text", type=Path, help="a text, in UTF-8")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens that are read")
    parser.add_argument("--scored", type=int, default=256, help="of those, the last that count")
    parser.add_argument("--rows", type=int, default=256, help="tokens of a pass")
    parser.add_argument("--needles", type=int, default=0, help=f"hidden, up to {len(NAMES)}")
    parser.add_argument("--rounded-session", type=Path, metavar="FILE", help="written anew")
    parser.add_argument("--gguf", type=Path, help="the same model, for llama.cpp")
    options = parser.parse_args()
    if options.rounded_session and (options.tokens - options.scored) % options.rows:
        parser.error("--rounded-session needs whole passes of --rows before those that count")
    with edgedec.load(options.exact) as engine:
        text = options.text.read_text(encoding="utf-8")[: 10 * options.tokens]
        every = engine.tokenizer.encode(text)
        if len(every) < options.tokens:
            parser.error(f"{options.text} has {len(every)} tokens, expected {options.tokens}")
        tokens, questions = hidden(engine.tokenizer, every, options.tokens, options.needles)
    first = read(options.exact, tokens, options.scored, options.rows, questions)
    exact, following = first.log_probabilities, tokens[-options.scored + 1 :]
    print(
        f"{options.exact.name}: {first.mb:.1f} MB, perplexity {perplexity(exact, following):.2f}"
        + numbers_found(first, questions),
        flush=True,
    )
    if options.rounded_session is not None:
        reading = read(
            options.exact, tokens, options.scored, options.rows, questions, options.rounded_session
        )
        print(
            f"rounded session: {difference(exact, reading.log_probabilities, following)}"
            + numbers_found(reading, questions),
            flush=True,
        )
    for bundle in options.smaller:
        reading = read(bundle, tokens, options.scored, options.rows, questions)
        print(
            f"{bundle.name}: {reading.mb:.1f} MB, "
            + difference(exact, reading.log_probabilities, following)
            + numbers_found(reading, questions),
            flush=True,
        )
    if options.gguf is not None:
        exact, other = (
            read_with_llama_cpp(options.gguf, kind, tokens, options.scored, options.rows)
            for kind in ("f16", "q4_0")
        )
        print(f"llama.cpp, f16: perplexity {perplexity(exact, following):.2f}")
        print(f"llama.cpp, q4_0: {difference(exact, other, following)}")


def difference(exact: Float64, other: Float64, following: Sequence[int]) -> str:
    """Returns in words how far ``other`` is from ``exact``, both log-probabilities."""
    divergence = (np.exp(exact) * (exact - other)).sum(axis=-1)
    same = np.mean(exact.argmax(axis=-1) == other.argmax(axis=-1))
    return (
        f"KL {divergence.mean():.5f} nats, largest {divergence.max():.3f}, perplexity "
        f"{perplexity(other, following):.2f}, same first choice {same:.1%}"
    )


def numbers_found(reading: Reading, questions: Sequence[Question]) -> str:
    """Returns how many of the hidden numbers were found, nothing if none were hidden."""
    return f", {reading.n_found} of {len(questions)} numbers found" if questions else ""


def perplexity(log_probabilities: Float64, following: Sequence[int]) -> float:
    """Returns that of the tokens that follow each row but the last."""
    rows = np.arange(len(following))
    return float(np.exp(-log_probabilities[rows, np.asarray(following)].mean()))


if __name__ == "__main__":
    main()
