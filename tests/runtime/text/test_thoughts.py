"""Thoughts and answers of models that mark them in different ways, however the text is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.runtime.text.shown_tokens import ShownTokens
from edgedec.runtime.text.text_stream import TextStream, maker_of_texts
from edgedec.runtime.text.thoughts import (
    ThoughtFormat,
    ThoughtSplitter,
    find_thought_format,
)
from edgedec.runtime.text.tokenizer import Tokenizer

HARMONY = [
    "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|constrain|>", "<|call|>",
]  # fmt: skip
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Ulm"}}</tool_call>'
SOLAR = ["<|begin|>", "<|think|>", "<|content|>", "<|end|>"]
FORMATS = {
    "gpt-oss": (
        HARMONY,
        "",
        "<|channel|>analysis<|message|>User asks.<|end|><|start|>assistant<|channel|>final"
        "<|message|>Hello there<|return|>",
        ("User asks.", "Hello there"),
    ),
    "gpt-oss, twice": (
        HARMONY,
        "",
        "<|channel|>analysis<|message|>One. <|end|><|start|>assistant<|channel|>commentary"
        "<|message|>First, <|end|><|start|>assistant<|channel|>analysis<|message|>two.<|end|>"
        "<|start|>assistant<|channel|>final <|constrain|>json<|message|>{}",
        ("One. two.", "First, {}"),
    ),
    "gpt-oss, at once": (HARMONY, "", "<|channel|>final<|message|>Hi", ("", "Hi")),
    # What openai-harmony 0.0.8 finds in the calls below; it agrees on 3,000 drawn outputs.
    "gpt-oss, a call": (
        HARMONY,
        "",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city": "Ulm"}<|call|>',
        ("Hm.", CALL),
    ),
    "gpt-oss, a call that a stop token ends": (
        HARMONY,
        "",
        '<|channel|>commentary to=functions.get_weather<|constrain|>json<|message|>{"city": "Ulm"}',
        ("", CALL),
    ),
    "gpt-oss, the recipient first": (
        HARMONY,
        "",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.get_weather"
        '<|channel|>commentary json<|message|>{"city": "Ulm"}<|call|>',
        ("", f"I look.{CALL}"),
    ),
    "gpt-oss, at once to a tool": (
        HARMONY,
        "",
        ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Ulm"}<|call|>',
        ("", CALL),
    ),
    "gpt-oss, a tool in its thoughts": (
        HARMONY,
        "",
        "<|channel|>analysis to=browser.open code<|message|><|call|>",
        ("", '<tool_call>{"name": "browser.open", "arguments": {}}</tool_call>'),
    ),
    "gpt-oss, cut off in a call": (
        HARMONY,
        "",
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"city": "U',
        ("", '<tool_call>{"name": "f", "arguments": {"city": "U'),
    ),
    "gpt-oss, no mark before the next part": (
        HARMONY,
        "",
        "<|channel|>analysis<|message|>Hm.<|end|>commentary to=functions.get_weather json"
        '<|message|>{"city": "Ulm"}<|call|>',
        ("Hm.", CALL),
    ),
    "gpt-oss, an odd channel": (
        HARMONY,
        "",
        "<|channel|>analysis\u2013\u2013commentary<|message|>Hm.<|end|><|start|>assistant<|channel|>"
        "final<|message|>Hello",
        ("Hm.", "Hello"),
    ),
    "gpt-oss, text behind a part": (
        HARMONY,
        "",
        "<|channel|>analysis<|message|>Hm.<|end|>Hello",
        ("Hm.", "Hello"),
    ),
    "qwen3, only the end of a thought": (
        [],
        "{{ '</think>' }}",
        "</think>\n\nHello",
        ("", "Hello"),
    ),
    "gpt-oss, to= in a text": (HARMONY, "", "to be", ("", "to be")),
    "medgemma": (
        ["<unused94>", "<unused95>"],
        "{{ '<start_of_turn>' }}",
        "<unused94>thought\nHm.\n<unused95>Hello",
        ("Hm.", "Hello"),
    ),
    "medgemma, marks that are no special tokens": (
        [],
        "{{ '<start_of_turn>' }}",
        "<unused94>thought\nHm.<unused95>Hello",
        ("Hm.", "Hello"),
    ),
    "gemma 4": (
        ["<|channel>", "<channel|>"],
        "",
        "<|channel>thought\nThe user greets.\n<channel|>Hello!",
        ("The user greets.", "Hello!"),
    ),
    "magistral": (["[THINK]", "[/THINK]"], "", "[THINK]Hm.[/THINK]Hello", ("Hm.", "Hello")),
    "command-a": (
        ["<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"],
        "",
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Hello<|END_RESPONSE|>",
        ("Hm.", "Hello"),
    ),
    "apertus": (
        ["<|inner_prefix|>", "<|inner_suffix|>"],
        "",
        "<|inner_prefix|>Hm.<|inner_suffix|>Hello",
        ("Hm.", "Hello"),
    ),
    "solar": (
        SOLAR,
        "{{ '<|think|>' }}",
        "<|think|>Hm.<|end|><|begin|>assistant<|content|>Hello<|end|>",
        ("Hm.", "Hello"),
    ),
    "qwen3": (
        [],
        "{% if '</think>' in content %}",
        "<think>\nHm.\n\nYes.\n</think>\n\nSo <think> it is.",
        ("Hm.\n\nYes.", "So <think> it is."),
    ),
    # The first closing mark ends a thought, quoted or not: so do vLLM's parsers (0.9
    # basic_parsers.py and deepseek_r1_reasoning_parser.py) and llama.cpp's (common/chat.cpp).
    "qwen3, a thought that quotes its end": (
        [],
        "{% if '</think>' in content %}",
        "<think>\nIt tests `</think>` first.\n</think>\n\nYes.",
        ("It tests `", "` first.\n</think>\n\nYes."),
    ),
    "qwen3, a thought that quotes its beginning": (
        [],
        "{% if '</think>' in content %}",
        "<think>\nIt writes `<think>` first.\n</think>\n\n`</think>` ends it.",
        ("It writes `<think>` first.", "`</think>` ends it."),
    ),
    "qwen3, other models' marks": (
        [],
        "{% if '</think>' in content %}",
        "<think>[/THINK] <|END_THINKING|> <channel|></think>[THINK]Hm.[/THINK]",
        ("[/THINK] <|END_THINKING|> <channel|>", "[THINK]Hm.[/THINK]"),
    ),
    "seed-oss": (
        [],
        "{{ '</seed:think>' }}",
        "<seed:think>Hm.</seed:think>Hello",
        ("Hm.", "Hello"),
    ),
    "kimi": ([], "{{ '◁/think▷' }}", "◁think▷Hm.◁/think▷Hello", ("Hm.", "Hello")),
    "granite": (
        [],
        "{{ '<think></think><response></response>' }}",
        "<think>Hm.</think>\n<response>Hello</response>",
        ("Hm.", "Hello"),
    ),
    "granite, without": (
        [],
        "{{ '<think></think><response></response>' }}",
        "<think>Hm.</think>\n<re: Hello",
        ("Hm.", "<re: Hello"),
    ),
    "apriel": (
        [],
        "{{ '[BEGIN FINAL RESPONSE]' }}",
        "Here are my reasoning steps:\nHm.\n[BEGIN FINAL RESPONSE]\nHello[END FINAL RESPONSE]",
        ("Hm.", "Hello"),
    ),
    "no marks known": ([], "", "<think>Hm.</think>Hello", ("Hm.", "Hello")),
    "no thought": ([], "", " <thin air", ("", " <thin air")),
    "cut off": ([], "", "<think>Hm, so\n", ("Hm, so", "")),
}


def made(text: str, special: list[str], template: str) -> tuple[str, str]:
    """Returns thought and answer of ``text``, in which special tokens are characters."""
    return joined(splitter_of(template, special), [in_characters(text, special)])


def in_characters(text: str, special: list[str]) -> str:
    """Returns ``text`` with special tokens as characters."""
    for i, name in enumerate(special):
        text = text.replace(name, chr(0x100000 + i))
    return text


def splitter_of(template: str, special: list[str]) -> ThoughtSplitter:
    marks = {name: in_characters(name, special) for name in special}
    marked = find_thought_format(template, special).marked(marks)
    return ThoughtSplitter(marked, "start", tuple(marks.values()))


def joined(splitter: ThoughtSplitter, pieces: list[str]) -> tuple[str, str]:
    found = [part for piece in pieces for part in splitter.push(piece)]
    found += splitter.push("", is_last=True)
    hidden = dict.fromkeys(range(1048576, 1048592), "")
    thought, text = (
        "".join(part for kind, part in found if kind in kinds).translate(hidden)
        for kinds in (("thought",), ("text", "added"))
    )
    return thought, text


@pytest.mark.parametrize("name", ["magistral", "gemma 4", "command-a", "apertus", "solar"])
def test_marks_in_letters_are_text_where_marks_are_tokens(name: str) -> None:
    """Thought and answer may quote marks then, as for parsers of vLLM that look at ids."""
    special, template, text, (thought, answer) = FORMATS[name]
    letters = f" It says {' '.join(special)}."
    text = in_characters(text, special).replace(thought, thought + letters)
    text = text.replace(answer, answer + letters)
    found = joined(splitter_of(template, special), [text])
    assert found == (thought + letters, answer + letters)


@pytest.mark.parametrize("name", FORMATS)
def test_each_model_marks_thoughts_its_way(name: str) -> None:
    special, template, text, expected = FORMATS[name]
    assert made(text, special, template) == expected


@pytest.mark.parametrize("name", FORMATS)
@settings(deadline=None)
@given(st.data())
def test_cuts_do_not_matter(name: str, data: st.DataObject) -> None:
    special, template, text, expected = FORMATS[name]
    marks = {one: chr(0x100000 + i) for i, one in enumerate(special)}
    for one, mark in marks.items():
        text = text.replace(one, mark)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1))))
    known = find_thought_format(template, special).marked(marks)
    splitter = ThoughtSplitter(known, "start", tuple(marks.values()))
    assert joined(splitter, [text[i:j] for i, j in pairwise([0, *cuts, len(text)])]) == expected


@pytest.mark.parametrize(
    ("prompt", "state"),
    [
        ("<|im_start|>assistant\n", "start"),
        ("<|im_start|>assistant\n<think>\n", "thought"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "text"),
        ("What is <think>?<|im_end|>\n<|im_start|>assistant\n", "start"),
    ],
)
def test_prompts_may_begin_a_thought_or_end_it(prompt: str, state: str) -> None:
    assert ThoughtFormat().state_after(prompt) == state


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("plan</think>answer", "plan", "answer"),
        ("plan\n</think>\n\nanswer", "plan", "answer"),
        ("</think>answer", "", "answer"),
        ("</think>plan</think>answer", "", "plan</think>answer"),
        ("plan", "plan", ""),  # cut off
        ("I say </think> is a tag", "I say ", " is a tag"),
    ],
)
@pytest.mark.parametrize("n", [1, 3, 100])
def test_a_thought_that_the_template_opened_ends_with_the_first_mark(
    text: str, thought: str, answer: str, n: int
) -> None:
    """As llama.cpp and vLLM cut it; behind a prompt that opens none, all of it is the answer."""
    for prompt, parts in (("<think>\n", (thought, answer)), ("assistant\n", None)):
        splitter = ThoughtSplitter(ThoughtFormat(), ThoughtFormat().state_after(prompt))
        pieces = [*splitter.push("")]
        for i in range(0, len(text), n):
            pieces += splitter.push(text[i : i + n])
        pieces += splitter.push("", is_last=True)
        joined_parts = tuple(
            "".join(part for kind, part in pieces if kind == wanted)
            for wanted in ("thought", "text")
        )
        assert joined_parts == (parts or ("", text.removeprefix("</think>")))


def with_marks(backend: tokenizers.Tokenizer) -> Tokenizer:
    backend.add_special_tokens(["[THINK]", "[/THINK]"])
    return Tokenizer(backend)


def pushed(stream: TextStream, ids: list[int]) -> str:
    text = ""
    for token in ids:
        text += stream.push(token)
        if stream.is_stopped:
            break
    return text + stream.flush()


@pytest.mark.parametrize(
    ("stop", "text", "reasoning", "stop_text"),
    [
        ([], "the lazy dog", "the quick fox", ""),
        (["quick"], "the lazy dog", "the quick fox", ""),
        ([" lazy"], "the", "the quick fox", " lazy"),
        (["[/THINK]"], "", "the quick fox", "[/THINK]"),
    ],
)
def test_stop_texts_are_of_the_answer(
    backend: tokenizers.Tokenizer, stop: list[str], text: str, reasoning: str, stop_text: str
) -> None:
    tokenizer = with_marks(backend)
    ids = tokenizer.encode_rendered("[THINK]the quick fox[/THINK]the lazy dog", {})
    marks = find_thought_format("", tokenizer.special_texts)
    trace = ShownTokens()
    stream = maker_of_texts(tokenizer, (), stop, marks, "start")(trace)
    assert pushed(stream, ids) == text
    assert (stream.text, stream.reasoning, stream.stop_text) == (text, reasoning, stop_text)
    assert "".join(one.text for one in trace.shown) == text
    n_thought = len(tokenizer.encode("the quick fox")) + 2
    assert stream.n_thought_tokens == n_thought
    assert all(place >= n_thought for one in trace.shown for place in one.places)


@settings(deadline=None)
@given(text=st.text(max_size=40), stop=st.text(max_size=3))
def test_shown_tokens_join_to_the_text(trained: str, text: str, stop: str) -> None:
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(trained))
    ids = tokenizer.encode(text)
    trace = ShownTokens()
    stream = maker_of_texts(tokenizer, (), [stop] if stop else [], ThoughtFormat(), "text")(trace)
    assert pushed(stream, ids) == stream.text
    assert "".join(one.text for one in trace.shown) == stream.text
