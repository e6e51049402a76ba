"""A language server whose model knows by heart what follows; all but the model is the real one.

python knowing_server.py BUNDLE ...: as `edgedec lsp`. BUNDLE: a folder with a manifest, not read.

The model renames: where it reads `width`, it writes `w`. It adds a line `c = 3` behind `b = 2`.
Behind `The sun` it writes ` rises`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

sys.path.insert(0, str(Path(__file__).parents[3]))

from edgedec.apps.cli import main
from edgedec.apps.lsp import served_model
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.methods.method_parts import MethodParts
from edgedec.runtime.text.prompt import PromptEncoder
from edgedec.runtime.text.tokenizer import Tokenizer
from tests.runtime.conftest import Row, ToyModel, one_hot

MARK = "<|file_sep|>"
MIDDLE = "<|fim_middle|>"
SPECIAL = ["<|fim_prefix|>", "<|fim_suffix|>", MIDDLE, MARK]
CONTEXT = 4096


def rewritten(window: str) -> str:
    """Returns what the model makes of a window."""
    text = re.sub(r"\bwidth\b", "w", window)
    return re.sub(r"b = 2\n(?!c = 3)", "b = 2\nc = 3\n", text)


def knowing_engine() -> Engine:
    """Returns an engine whose model answers prompts of the format `sweep`, and fills in."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made = tokenizers.Tokenizer(models.BPE({a: i for i, a in enumerate(sorted(alphabet))}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    codec = Tokenizer(made)
    mark, middle = (made.token_to_id(name) for name in (MARK, MIDDLE))
    (end,) = codec.encode("\n")

    def rule(prefix: Sequence[int]) -> Row:
        tokens = list(prefix)
        marks = [-1, *(i for i, token in enumerate(tokens) if token == mark)]
        if len(marks) == 1 or middle in tokens:
            _, sun, read = codec.decode(tokens).rpartition("The sun")
            expected, known = codec.encode(" rises" if sun else ""), codec.encode(read.strip("\n"))
        else:
            parts = tokens[marks[-2] + 1 : marks[-1]], tokens[marks[-1] + 1 :]
            window, known = (part[part.index(end) + 1 :] for part in parts)  # behind its name
            expected = codec.encode(rewritten(codec.decode(window)))
        is_begun = expected[: len(known)] == known and len(expected) > len(known)
        token = expected[len(known)] if is_begun else mark
        row: Row = 20 * one_hot(codec.vocab_size, token)
        return row

    model = ToyModel(codec.vocab_size, rule)
    return Engine(LoadedModel(model, codec, PromptEncoder(codec), MethodParts(CONTEXT)))


def load(*arguments: Any) -> Engine:
    return knowing_engine()


if __name__ == "__main__":
    served_model.load = load  # type: ignore[assignment]
    sys.argv.insert(1, "lsp")
    main()
