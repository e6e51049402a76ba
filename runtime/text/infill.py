"""The tokens with which a model fills in what is missing between two texts.

Source: arXiv:2207.14255 (fill in the middle); the Qwen2.5-Coder, StarCoder, DeepSeek-Coder and
CodeLlama model cards; ggml-org/llama.cpp ``src/llama-vocab.cpp`` (MIT): further names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.runtime.text.tokenizer import Codec

FORMATS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<|prefix|>", "<|suffix|>", "<|middle|>"),
)
FILE_MARKS = ("<|file_sep|>", "<file_sep>")


@dataclass(frozen=True)
class InfillTokens:
    """Tokens that lead in the prefix, the suffix and the middle.

    stops: those that end the middle. file: what leads in a file of several, if there is such a
    token.
    """

    prefix: int
    suffix: int
    middle: int
    stops: tuple[int, ...]
    file: int | None = None

    def typing_prompt(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """As `prompt`, but what is before comes last: more of it appends to the prompt.

        Source: arXiv:2207.14255, "SPM" with the variant of its appendix, which models that were
        trained on "PSM" take for an empty prefix and a middle that has begun.
        """
        return [self.prefix, self.suffix, *after, self.middle, *before]

    def prompt(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """Returns the prompt that asks for what stands between two texts."""
        return [self.prefix, *before, self.suffix, *after, self.middle]


def find_infill_tokens(tokenizer: Codec) -> InfillTokens | None:
    """Returns the tokens with which a model fills in; None where its tokenizer has none."""

    def token(text: str) -> int | None:
        ids = tokenizer.encode_rendered(text, {})
        return ids[0] if len(ids) == 1 else None

    special = [token(text) for text in tokenizer.special_texts]
    for texts in FORMATS:
        prefix, suffix, middle = map(token, texts)
        if prefix is not None and suffix is not None and middle is not None:
            stops = {one for one in special if one is not None} | {prefix, suffix, middle}
            file = next((one for mark in FILE_MARKS if (one := token(mark)) is not None), None)
            return InfillTokens(prefix, suffix, middle, tuple(sorted(stops)), file)
    return None
