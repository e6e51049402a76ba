"""How byte-level vocabularies of GGUF files cut text before merging.

Sources: ggml-org/llama.cpp ``src/llama-vocab.cpp`` (MIT): which names mean which expressions;
tokenizer.json of openai-community/gpt2, HuggingFaceTB/SmolLM2-135M-Instruct,
Qwen/Qwen2.5-Coder-0.5B-Instruct, meta-llama/Meta-Llama-3-8B, microsoft/Phi-4-mini-instruct,
mistralai/Mistral-Nemo-Base-2407 and deepseek-ai/DeepSeek-V3, and moonshotai/Moonlight-16B-A3B's
``tokenization_moonshot.py``: the expressions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PreTokenizer:
    """How a vocabulary cuts text before merging.

    splits: expressions whose matches are pieces, each applied to the pieces of the one before.
    ends_as_gpt2: GPT-2's own expression comes last.
    composes: text is put into Unicode form NFC first.
    keeps_characters: merging begins with characters, blanks marked; else with bytes. What no piece
    spells is written in pieces of bytes.
    takes_whole_pieces: a piece that is a token is taken without merging.
    adds_bos: what holds where ``tokenizer.ggml.add_bos_token`` is absent.
    """

    splits: tuple[str, ...] = ()
    ends_as_gpt2: bool = False
    composes: bool = False
    keeps_characters: bool = False
    takes_whole_pieces: bool = False
    adds_bos: bool = False

    def document(self) -> dict[str, Any]:
        """Returns it in the format of a ``tokenizer.json``."""
        steps = [
            {
                "type": "Split",
                "pattern": {"Regex": split},
                "behavior": "Isolated",
                "invert": False,
            }
            for split in self.splits
        ]
        if not self.keeps_characters:
            steps.append(byte_level(uses_gpt2_split=self.ends_as_gpt2))
        return {"type": "Sequence", "pretokenizers": steps}

    def normalizer(self) -> dict[str, Any] | None:
        """Returns what changes text before it is cut, in the same format."""
        if self.keeps_characters:
            return replaced(" ", BLANK)
        return {"type": "NFC"} if self.composes else None

    def decoder(self) -> dict[str, Any]:
        """Returns what makes text of pieces, in the same format."""
        if not self.keeps_characters:
            return byte_level(uses_gpt2_split=True)
        steps = [replaced(BLANK, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
        return {"type": "Sequence", "decoders": steps}


BLANK = "\u2581"
"""What stands for a blank in pieces that are not spelt in bytes."""


def replaced(text: str, content: str) -> dict[str, Any]:
    """Returns the step that replaces ``text``, in the format of a ``tokenizer.json``."""
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def byte_level(uses_gpt2_split: bool) -> dict[str, Any]:
    """Returns the step that spells bytes, in the format of a ``tokenizer.json``."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": uses_gpt2_split,
    }


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
_BLANKS = r"\s+(?!\S)|\s+"
_OTHERS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_BLANKS}"
_HAN_KANA = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+"
_ASCII_MARK = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _worded(digits: str, word: str = r"\p{L}+", contractions: str = _CONTRACTIONS + "|") -> str:
    """Returns the expression of Llama 3 and its kin, which differ in how digits are grouped."""
    return rf"{contractions}{_BEFORE_WORD}{word}|\p{{N}}{digits}|{_OTHERS}"


def _cased(contractions: str = "", digits: str = "") -> str:
    """Returns the expression of vocabularies that cut words where case changes."""
    words = (f"[{_UPPER}]*[{_LOWER}]+", f"[{_UPPER}]+[{_LOWER}]*")
    others = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|" + _BLANKS
    parts = [f"{_BEFORE_WORD}{word}{contractions}" for word in words]
    return "|".join([*parts, rf"\p{{N}}{digits}", others])


def _marked(others: str) -> str:
    """Returns the expression of DeepSeek V3 and its kin, which keep marks with letters."""
    words = rf"{_ASCII_MARK}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    return rf"{words}| ?[\p{{P}}\p{{S}}]+{others}|{_BLANKS}"


def _counted_from_behind(digit: str) -> str:
    """Returns the expression of digits in threes, of which the first group may be shorter."""
    return rf"{digit}{{1,3}}(?=(?:{digit}{{3}})*(?!{digit}))"


def _cased_beside_han() -> str:
    """Returns the expression of Kimi, which keeps runs of Han apart from other letters."""
    words = _cased(contractions=f"{_CONTRACTIONS}?", digits="{1,3}").replace(
        "[\\r\\n/]", "[\\r\\n]"
    )
    for letters in (_UPPER, _LOWER):
        words = words.replace(f"[{letters}]", rf"[{letters}&&[^\p{{Han}}]]")
    return rf"\p{{Han}}+|{words}"


_GPT2 = PreTokenizer(ends_as_gpt2=True)
_DIGITS = PreTokenizer((r"\p{N}",), ends_as_gpt2=True)
_LLAMA3_SPLIT, _QWEN2_SPLIT = _worded("{1,3}"), _worded("")
_LLAMA3 = PreTokenizer((_LLAMA3_SPLIT,), takes_whole_pieces=True, adds_bos=True)
_QWEN2 = PreTokenizer((_QWEN2_SPLIT,))
_GPT4O = PreTokenizer((_cased(contractions=f"{_CONTRACTIONS}?", digits="{1,3}"),))
_DEEPSEEK3 = PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, _marked(r"[\r\n]*|\s*[\r\n]+")))
_CASED_OF_DEEPSEEK = (
    r"[[\p{Lu}\p{Ll}\p{Lt}]&&[^\x{560}-\x{588}\x{10c7}-\x{10ff}\x{1c80}-\x{1c88}\x{2d00}-\x{2d2d}"
    r"\x{a790}-\x{a7ff}\x{ab30}-\x{ab68}\x{10570}-\x{105bc}\x{16e40}-\x{16e7f}"
    r"\x{1d400}-\x{1d7cb}\x{1df00}-\x{1df1e}]]"
)
"""Letters with cases, but for those of some scripts."""
_MARKS_OF_DEEPSEEK = r"[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]"
_SENTENCES = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{ff0c}\x{3001}\x{964}\x{6d4}\x{60c})]+"
_HAN_HANGUL = r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+"

_SCRIPTS_OF_AFMOE = (
    r"[\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{f900}-\x{faff}\x{3040}-\x{30ff}\x{ff65}-\x{ff9f}"
    r"\x{2f00}-\x{2fdf}\x{e40}-\x{eff}\x{1780}-\x{17ff}\x{1000}-\x{109f}\x{aa60}-\x{aa7f}"
    r"\x{a9e0}-\x{a9ff}\x{ac00}-\x{d7af}\x{1100}-\x{11ff}]+"
)
"""Scripts without blanks between words, and Hangul."""

CHARACTERS = PreTokenizer((r"[^\n]+|\n+",), keeps_characters=True, adds_bos=True)
"""Of files whose ``tokenizer.ggml.model`` is ``gemma4``, whatever ``tokenizer.ggml.pre`` says."""

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+"
                             r"| ?[^\s\p{L}\p{N}]+|\s+(?!\S)", r"\p{N}+", "[0-9][0-9][0-9]")),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+"
                            r"| ?[^\s\p{L}\p{N}]+|\s+(?!\S)", "[0-9][0-9][0-9]")),
    **dict.fromkeys(
        ("gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4",
         "granite-docling", "gigachat", "a.x-4.0", "mellum", "modern-bert", "jina-es", "jina-de",
         "jina-v2-es", "jina-v2-de", "jina-v1-en", "jina-v2-code", "roberta-bpe"), _GPT2
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
         "mellum2"), _DIGITS
    ),
    **dict.fromkeys(
        ("llama-bpe", "llama-v3", "llama3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
         "jina-v5-nano"), _LLAMA3,
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), PreTokenizer((_LLAMA3_SPLIT,))),
    **dict.fromkeys(("glm4", "glm5"), PreTokenizer((_LLAMA3_SPLIT,), takes_whole_pieces=True)),
    "jais-2": PreTokenizer((_LLAMA3_SPLIT.replace(
        _BLANKS, r"\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)"
        r"|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"),)),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _worded("+")), takes_whole_pieces=True),
    "qwen2": PreTokenizer((_QWEN2_SPLIT,), composes=True),
    "qwen35": PreTokenizer((
        _worded("", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"),
    ), composes=True),
    **dict.fromkeys(
        ("deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open",
         "grok-2"), _QWEN2
    ),
    "ufakzeka": PreTokenizer((_worded("", contractions=""),)),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _QWEN2_SPLIT)),
    "seed-coder": PreTokenizer((
        rf"{_CONTRACTIONS}|{_BEFORE_WORD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+"
        rf"|{_BLANKS}",)),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), PreTokenizer((
        _QWEN2_SPLIT.replace(r"\s*[\r\n]+", r"\s*[\r\n]"),))),
    "exaone-moe": PreTokenizer((
        rf"{_CONTRACTIONS}|{_BEFORE_WORD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_BLANKS}",)),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT4O),
    "granite-embed-multi-97m": PreTokenizer(_GPT4O.splits, takes_whole_pieces=True),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), PreTokenizer(
        (_counted_from_behind(r"\p{N}"), *_GPT4O.splits))),
    "youtu": PreTokenizer((
        r"[\x{ac00}-\x{d7a3}\x{3131}-\x{318e}]+"
        r"|[\x{ff01}\x{2026}\x{201c}\x{201d}\x{2018}\x{2019}\x{2014}\x{ff1a}\x{ff1b}\x{ff0c}"
        r"\x{3001}-\x{303f}\x{fe30}-\x{fe4f}]+|[\x{3105}-\x{312f}]+|" + _HAN_KANA,
        _cased(contractions=f"{_CONTRACTIONS}?")), takes_whole_pieces=True),
    "kimi-k2": PreTokenizer((_cased_beside_han(),)),
    "afmoe": PreTokenizer((
        _counted_from_behind(r"\p{N}"), _SCRIPTS_OF_AFMOE,
        _marked(r"[\r\n]*|\s*[\r\n]+"))),
    "tekken": PreTokenizer((_cased(),), takes_whole_pieces=True, adds_bos=True),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK3),
    "spark2_5": PreTokenizer((*_DEEPSEEK3.splits[:2], _marked(r"|[\r\n]"), r"\p{N}")),
    "deepseek-llm": PreTokenizer((
        r"[\r\n]", rf"\s?{_CASED_OF_DEEPSEEK}+", rf"\s?{_MARKS_OF_DEEPSEEK}+", r"\s+$",
        _HAN_HANGUL, r"\p{N}+")),
    "deepseek-coder": PreTokenizer((
        r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, r"\p{N}")),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), PreTokenizer((_SENTENCES,))),
    "viking": PreTokenizer((_SENTENCES, r"\p{N}")),
    "superbpe": PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
}  # fmt: skip
"""Known values of ``tokenizer.ggml.pre``."""
