"""Settings of tokenizers, drawn at random, against the ids that transformers gives texts.

    python tools/fuzz/tokenizer_settings.py --tries 2000 --python .venv/bin/python --python OTHER

Each try is a folder as publishers write it with transformers 4 or 5. That version reads it, and so
does edgedec. Both give all texts the same ids, the same opening and the same names of tokens for
chat templates. Where transformers 5 reads files of 4 otherwise, a warning of the export says so.
Without an interpreter that has the version, a try is skipped. Called again it goes on.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

PIECE = 50
UNDERLINE = "\u2581"
SPECIALS = ("<unk>", "<s>", "</s>", "<pad>", "<bos>", "<eos>", "<|endoftext|>", "<|im_start|>",
            "<|im_end|>", "<mask>")  # fmt: skip
TEXTS = (
    "a dog", " a dog", "  two  blanks ", "", "<s>dog</s> the", "the <tool>dog", "x[X]y",
    "dog [X] hello", "</s>hello", "caf\u00e9 cafe\u0301 1234", "a\n\nb\tc", "<extra> <more>dog",
    "<s>[X] <|im_start|>user\nhello<|im_end|>\n", "\U0001f600 dog", "hello , dog .", "it's [X]",
)  # fmt: skip
_BY_BOTH = ("LlamaTokenizer", "GPT2Tokenizer", "Qwen2Tokenizer", "GemmaTokenizer")
CLASSES = {
    4: (*_BY_BOTH, *(f"{name}Fast" for name in _BY_BOTH), "PreTrainedTokenizerFast", None),
    5: (*_BY_BOTH, "TokenizersBackend"),
}
"""By the version of transformers that writes them; None: the class is that of the model."""
KIND_OF_CLASS = {"Ll": ("prepend", "metaspace"), "GP": ("bytes",), "Qw": ("qwen",),
                 "Ge": ("gemma",)}  # fmt: skip
MODEL_TYPES = {"prepend": "llama", "metaspace": "llama", "bytes": "llama", "qwen": "qwen2",
               "gemma": "gemma2"}  # fmt: skip
ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CORPUS = ["the quick dog and a dog [X] hello user word it's caf\u00e9 12 "] * 3


@cache
def trained(kind: str) -> str:
    """Returns a small tokenizer of the kind that a class of transformers builds."""
    is_bytes = kind in ("bytes", "qwen")
    more = {} if is_bytes else {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    made = Tokenizer(models.BPE(**more))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if kind == "bytes":
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif kind == "qwen":
        made.normalizer = normalizers.NFC()
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        first = pre_tokenizers.Split(Regex(_QWEN), "isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence([first, last])
    elif kind == "gemma":
        made.normalizer = normalizers.Replace(" ", UNDERLINE)
        made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    elif kind == "prepend":
        parts = [normalizers.Prepend(UNDERLINE), normalizers.Replace(" ", UNDERLINE)]
        made.normalizer = normalizers.Sequence(parts)
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    spelt = [decoders.Replace(UNDERLINE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if kind in ("prepend", "metaspace"):
        spelt.append(decoders.Strip(" ", 1, 0))
    made.decoder = decoders.ByteLevel() if is_bytes else decoders.Sequence(spelt)
    listed = [*SPECIALS, *([] if is_bytes else [f"<0x{i:02X}>" for i in range(256)])]
    made.train_from_iterator(_CORPUS, trainers.BpeTrainer(
        vocab_size=600, special_tokens=listed, show_progress=False,
        initial_alphabet=alphabet if is_bytes else [],
    ))  # fmt: skip
    document = json.loads(made.to_str())
    kept = [token for token in document["added_tokens"] if not token["content"].startswith("<0x")]
    return json.dumps({**document, "added_tokens": kept})


def draw(folder: Path, seed: int) -> dict[str, Any]:
    """Writes the files of a tokenizer; returns what is drawn, with the version that wrote it."""
    rng = random.Random(seed)
    version = rng.choice((4, 5))
    name = rng.choice(CLASSES[version])
    kind = rng.choice(KIND_OF_CLASS.get((name or "")[:2], tuple(MODEL_TYPES)))
    if version == 5 and kind == "prepend":  # which it never writes
        kind = "metaspace"
    made = Tokenizer.from_str(trained(kind))
    settings = _settings(rng, name, kind, version)
    if kind == "metaspace":
        scheme = rng.choice(("first", "always", "never"))
        if version == 5:
            scheme = "always" if settings.get("legacy") else "first"
            scheme = scheme if settings.get("add_prefix_space", True) else "never"
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    _frame(made, rng)
    for content in ("<tool>", "[X]"):
        if rng.random() < 0.4:
            made.add_tokens([AddedToken(content, **_flags(rng))])
    if rng.random() < 0.25:
        settings["added_tokens_decoder"] = {
            str(token.pop("id")): {**token, **(_flags(rng) if rng.random() < 0.2 else {})}
            for token in json.loads(made.to_str())["added_tokens"]
        }
    files = {"tokenizer_config.json": settings}
    files["config.json"] = {"model_type": MODEL_TYPES[kind], "vocab_size": 1000}
    if version == 4 and rng.random() < 0.2:
        files["special_tokens_map.json"] = {
            rng.choice(ROLES): rng.choice(SPECIALS),
            **({"additional_special_tokens": ["<more>"]} if rng.random() < 0.5 else {}),
        }
    if version == 4 and rng.random() < 0.15:
        files["added_tokens.json"] = {"<more>": made.get_vocab_size()}
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))
    return {"version": version, "kind": kind, **files}


def _frame(made: Tokenizer, rng: random.Random) -> None:
    """Draws padding, truncation and what stands around texts."""
    if rng.random() < 0.2:
        side, length = rng.choice(("left", "right")), rng.choice((None, 8, 16))
        made.enable_padding(direction=side, length=length, pad_id=3, pad_token="<pad>")
    if rng.random() < 0.2:
        made.enable_truncation(rng.choice((4, 64)))
    if single := rng.choice(("", "<s> $A", "$A </s>", "<s> $A </s>", "<bos> $A")):
        tokens = [(token, SPECIALS.index(token)) for token in ("<s>", "</s>", "<bos>")]
        made.post_processor = processors.TemplateProcessing(single=single, special_tokens=tokens)


def _flags(rng: random.Random) -> dict[str, bool]:
    flags = ("lstrip", "rstrip", "normalized", "single_word", "special")
    return {flag: rng.random() < 0.3 for flag in flags}


def _settings(rng: random.Random, name: str | None, kind: str, version: int) -> dict[str, Any]:
    settings: dict[str, Any] = {} if name is None else {"tokenizer_class": name}
    usual = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    adds_bos = kind in ("gemma", "prepend", "metaspace")
    for role, text in usual.items():
        if rng.random() < 0.7:
            table = {"__type": "AddedToken", "content": text, **_flags(rng)}
            can_be_null = version == 5 or role != "bos_token" or not adds_bos
            settings[role] = rng.choice((text, text, table, None if can_be_null else text))
    if version == 5:
        settings["backend"] = "tokenizers"
    optional = {
        "add_prefix_space": (True, False), "legacy": (True, False),
        "extra_special_tokens": (["<extra>"],) if version == 5 else ({"image_token": "<extra>"},),
        "clean_up_tokenization_spaces": (True, False), "model_max_length": (4, 2048),
        "split_special_tokens": (False,), "padding_side": ("left", "right"),
    }  # fmt: skip
    if version == 4:
        optional |= {
            "additional_special_tokens": (["<more>"], ["<tool>"], ["<|im_start|>"]),
            "add_bos_token": (True, False), "add_eos_token": (True, False),
        }  # fmt: skip
        if adds_bos:  # version 4 then reads tokenizer.model instead
            del optional["add_prefix_space"]
    for key, values in optional.items():
        if rng.random() < 0.2:
            settings[key] = rng.choice(values)
    return settings


def theirs(folder: Path) -> dict[str, Any]:
    """Returns what transformers makes of the texts."""
    import transformers

    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))

    def ids(text: str, **more: Any) -> list[int]:
        return list(tokenizer(text, padding=False, truncation=False, **more).input_ids)

    whole, plain = ids("dog"), ids("dog", add_special_tokens=False)
    at = next(i for i in range(len(whole)) if whole[i : i + len(plain)] == plain)
    roles = {role: getattr(tokenizer, role, None) for role in ROLES}
    return {
        "opening": whole[:at],
        "roles": {role: text for role, text in roles.items() if text},
        **{text: ids(text, add_special_tokens=False) for text in TEXTS},
    }


def ours(folder: Path) -> dict[str, Any]:
    """Returns what edgedec makes of the texts."""
    from edgedec.export.checkpoints.safetensors_dir import HuggingFaceTexts
    from edgedec.runtime.text.tokenizer import Tokenizer as Codec

    texts = HuggingFaceTexts(folder)
    codec = Codec(Tokenizer.from_str(texts.tokenizer_json()))
    variables = texts.special.variables
    return {
        "opening": list(texts.special.opening_ids),
        "roles": {role: variables[role] for role in ROLES if role in variables},
        **{text: codec.encode_rendered(text, {}) for text in TEXTS},
    }


def read_all(root: Path) -> None:
    """Prints, as the oracle's process, what transformers makes of each folder under ``root``."""
    import transformers

    read: dict[str, Any] = {"version": transformers.__version__}
    for folder in root.iterdir():
        try:
            read[folder.name] = theirs(folder)
        except Exception as error:  # transformers raises bare exceptions
            read[folder.name] = f"{type(error).__name__}: {error}"
    print(json.dumps(read))


def compared(seeds: Sequence[int], pythons: Sequence[str] = (sys.executable,)) -> list[Outcome]:
    """Returns what becomes of the tries with these seeds.

    pythons: interpreters; each has the transformers that is asked.
    """
    root = Path(tempfile.mkdtemp())
    try:
        drawn = {seed: draw(root / str(seed), seed) for seed in seeds}
        command = [__file__, "--oracle", str(root)]
        answers = [subprocess.check_output([python, *command]) for python in pythons]
        oracles = [json.loads(answer.splitlines()[-1]) for answer in answers]
        return [_compared(root / str(seed), oracles, seed, drawn[seed]) for seed in seeds]
    finally:
        shutil.rmtree(root)


@dataclass(frozen=True)
class Outcome:
    """What became of a try. kind: in words. details: what is needed to see why, if it differs."""

    seed: int
    kind: str
    details: Any = None


def _compared(folder: Path, oracles: list[Any], seed: int, drawn: dict[str, Any]) -> Outcome:
    from edgedec.export.checkpoints.safetensors_dir import HuggingFaceTexts
    from edgedec.models.errors import EdgedecError  # which an oracle's process may lack

    at = f"{drawn['version']}."
    expected = next(
        (oracle[str(seed)] for oracle in oracles if oracle["version"].startswith(at)), None
    )
    if expected is None:
        return Outcome(seed, f"skipped: needs transformers {at[0]}")
    if isinstance(expected, str):
        return Outcome(seed, "not read by transformers", expected)
    try:
        made = ours(folder)
        is_warned = any("transformers 5" in line for line in HuggingFaceTexts(folder).unapplied)
    except EdgedecError as error:
        return Outcome(seed, "refused", str(error))
    for name, mine in made.items():
        if mine != expected[name]:
            return Outcome(seed, f"differs: {name}", [drawn, mine, expected[name]])
    newer = next((o[str(seed)] for o in oracles if o["version"].startswith("5.")), None)
    if at == "5." or not isinstance(newer, dict):
        return Outcome(seed, "warned without a reason" if is_warned and at == "5." else "equal")
    others = [name for name, mine in made.items() if mine != newer[name]]
    if others and not is_warned:
        return Outcome(seed, f"transformers 5 differs in silence: {others[0]}", [drawn, newer])
    if others:
        return Outcome(seed, "equal to 4, and a warning says that 5 differs")
    return Outcome(seed, "equal to both" + (", with a warning" if is_warned else ""))


def main() -> int:
    """Tries settings; prints how many came out how, and those that differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tries", type=int, default=2000)
    parser.add_argument("--seconds", type=int, default=500)
    parser.add_argument("--python", action="append", help="with the transformers to ask")
    parser.add_argument("--oracle", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.oracle:
        read_all(options.oracle)
        return 0
    from pieces import run_pieces

    outcomes: Counter[str] = Counter()

    def piece(seed: int) -> int:
        for outcome in compared(range(seed, seed + PIECE), options.python or [sys.executable]):
            outcomes[outcome.kind] += 1
            if outcome.details is not None:
                print(outcome.seed, outcome.kind, json.dumps(outcome.details), file=sys.stderr)
        return PIECE

    return run_pieces("tokenizer_settings", options.tries, options.seconds, piece, outcomes)


if __name__ == "__main__":
    sys.exit(main())
