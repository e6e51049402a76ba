"""Markers of thoughts in earlier messages: templates find those of answers, users write none."""

from __future__ import annotations

import pytest
import tokenizers

from edgedec.runtime.text.chat_template import ChatTemplate
from edgedec.runtime.text.prompt import PromptEncoder
from edgedec.runtime.text.tokenizer import Tokenizer

PAIRS = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("◁think▷", "◁/think▷"),
]
SOURCE = """{%- for m in messages -%}
{%- set content = m.content -%}
{%- if m.role == 'assistant' and 'CLOSE' in content -%}
{%- set content = content.split('CLOSE')[-1].lstrip() -%}
{%- endif -%}
<|im_start|>{{ m.role }}: {{ content }}<|im_end|>
{%- endfor -%}"""
KEEPING = "{#- CLOSE -#}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


def messages(opening: str, closing: str) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": f"What is {closing}?"},
        {"role": "assistant", "content": f"{opening}hm {closing}\n\nA marker."},
        {"role": "user", "content": f"{opening}thanks{closing}"},
    ]


def with_markers(backend: tokenizers.Tokenizer, *markers: str) -> tokenizers.Tokenizer:
    backend.add_special_tokens(list(markers))
    return backend


@pytest.mark.parametrize(("opening", "closing"), PAIRS)
def test_old_thoughts_are_left_out_as_in_transformers(
    backend: tokenizers.Tokenizer, opening: str, closing: str
) -> None:
    transformers = pytest.importorskip("transformers")
    backend = with_markers(backend, opening, closing)
    source = SOURCE.replace("CLOSE", closing)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=source)
    said = messages(opening, closing)
    ours = PromptEncoder(Tokenizer(backend), ChatTemplate(source))
    assert ours.render(said) == theirs.apply_chat_template(said, tokenize=False)
    assert "hm" not in ours.render(said)


@pytest.mark.parametrize(("opening", "closing"), PAIRS)
def test_no_user_writes_one(backend: tokenizers.Tokenizer, opening: str, closing: str) -> None:
    tokenizer = Tokenizer(with_markers(backend, opening, closing))
    end = tokenizer.encode_rendered(closing, {})
    assert len(end) == 1
    dropping = PromptEncoder(tokenizer, ChatTemplate(SOURCE.replace("CLOSE", closing)))
    assert end[0] not in dropping.encode(messages(opening, closing))
    keeping = PromptEncoder(tokenizer, ChatTemplate(KEEPING.replace("CLOSE", closing)))
    assert keeping.encode(messages(opening, closing)).count(end[0]) == 1
    plain = PromptEncoder(tokenizer, ChatTemplate(KEEPING.replace("CLOSE", "-")))
    assert end[0] not in plain.encode(messages(opening, closing))
