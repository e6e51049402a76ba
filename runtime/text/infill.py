"""The tokens with which a model fills in what is missing between two texts.

Source: arXiv:2207.14255 (fill in the middle); the Qwen2.5-Coder, StarCoder, DeepSeek-Coder and
CodeLlama model cards; ggml-org/llama.cpp ``src/llama-vocab.cpp`` (MIT): further names;
mistralai/mistral-common ``sentencepiece.py`` (Apache-2.0), the report of Seed-Coder (2025): the
suffix first.
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
"""What leads in prefix, suffix and middle."""
SUFFIX_FIRST = (
    ("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"),
    ("[PREFIX]", "[SUFFIX]", None),
)
"""Marks of models that read the suffix first. Without one for the middle, that begins where the
prefix ends."""
FILE_MARKS = ("<|file_sep|>", "<file_sep>")


@dataclass(frozen=True)
class InfillTokens:
    """Tokens that lead in the prefix, the suffix and the middle.

    Prompts of them stand behind what texts begin with, if there is such a token.

    middle: None where nothing leads it in. stops: those that end the middle. file: what leads in a
    file of several, if there is such a token. is_suffix_first: the suffix is read before the
    prefix.
    """

    prefix: int
    suffix: int
    middle: int | None
    stops: tuple[int, ...]
    file: int | None = None
    is_suffix_first: bool = False

    def typing_prompt(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """As `prompt`, but what is before comes last: more of it appends to the prompt.

        Source: arXiv:2207.14255, "SPM" with the variant of its appendix, which models that were
        trained on "PSM" take for an empty prefix and a middle that has begun.
        """
        if self.is_suffix_first:
            return self.prompt(before, after)
        return [self.prefix, self.suffix, *after, *self._middle, *before]

    def prompt(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """Returns the prompt that asks for what stands between two texts."""
        if self.is_suffix_first:
            return [self.suffix, *after, self.prefix, *before, *self._middle]
        return [self.prefix, *before, self.suffix, *after, *self._middle]

    @property
    def _middle(self) -> list[int]:
        return [] if self.middle is None else [self.middle]


def find_infill_tokens(tokenizer: Codec) -> InfillTokens | None:
    """Returns the tokens with which a model fills in; None where its tokenizer has none."""

    def token(text: str) -> int | None:
        ids = tokenizer.encode_rendered(text, {})
        return ids[0] if len(ids) == 1 else None

    special = [token(text) for text in tokenizer.special_texts]
    for texts in (*FORMATS, *SUFFIX_FIRST):
        prefix, suffix, middle = (None if text is None else token(text) for text in texts)
        if prefix is None or suffix is None or (middle is None and texts[-1] is not None):
            continue
        stops = {text for text in (*special, prefix, suffix, middle) if text is not None}
        return InfillTokens(
            prefix=prefix,
            suffix=suffix,
            middle=middle,
            stops=tuple(sorted(stops)),
            file=next(
                (token_id for mark in FILE_MARKS if (token_id := token(mark)) is not None), None
            ),
            is_suffix_first=texts in SUFFIX_FIRST,
        )
    return None
