"""Chat templates and odd messages, drawn at random, against what transformers renders.

    python tools/fuzz/chat_templates.py --tries 500 --templates FOLDER

Each try is a template and messages as clients keep them. The template is published, published with
a small change, or made of pieces that publishers write. Both render the same text, or both refuse.
Where edgedec gives a template other messages on purpose, transformers renders those messages, too,
and the outcome says why: `REASONS` and `REFUSALS` state all of it. Called again it goes on.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import product, takewhile
from pathlib import Path
from typing import Any

from pieces import run_pieces
from tokenizers import Tokenizer as Backend
from tokenizers import models

from edgedec.models.errors import EdgedecError
from edgedec.runtime.text.chat_template import ChatTemplate
from edgedec.runtime.text.prompt import PromptEncoder
from edgedec.runtime.text.tokenizer import Tokenizer

Messages = list[dict[str, Any]]

KEYS = "{{ m.keys() | list | join(',') }}"
PIECES = (
    "{{ m.content }}", "{{ m['content'] | trim }}", "{{ m.content or '' }}",
    "{% if m.content is string %}{{ m.content }}{% else %}{{ m.content | tojson }}{% endif %}",
    "{% if m.content is not none %}{{ m.content }}{% endif %}",
    "{% if m.content is defined and m.content %}{{ m.content }}{% endif %}",
    "{% if '</think>' in (m.content or '') %}{{ m.content.split('</think>')[-1].lstrip() }}"
    "{% else %}{{ m.content }}{% endif %}",
    "{% for c in m.content %}{{ c.text if c is mapping else c }}|{% endfor %}",
    "{{ m.content[0].text }}", "{{ m.content[0]['text'] if m.content[0].text else m.content }}",
    "{{ m.get('reasoning_content', '-') }}", "{{ m.name | default('nobody') }}",
    "{% if m.thinking %}<t>{{ m.thinking }}</t>{% endif %}{{ m.content }}",
    "{% for t in m.tool_calls or [] %}{{ t.function.name }}{{ t.function.arguments | tojson }}"
    "{% endfor %}",
    "{% for t in m.tool_calls or [] %}{{ t.function.name ~ t.function.arguments }}{% endfor %}",
    "{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments.items() | list }}{% endif %}",
    "{% if m.content.startswith('<tool_response>') %}T{% endif %}",
    "{{ (m.content ~ '').replace('a', 'b') | upper }}", "{{ loop.index0 }}{{ loop.last }}",
    "{{ m.content | length }}", KEYS, "{% if 'tool_calls' in m %}T{% endif %}",
    "{% if m.tool_calls is defined %}{{ m.tool_calls | length }}{% endif %}",
    "{% if m.role not in ('user', 'assistant') %}{{ raise_exception(m.role) }}{% endif %}",
    "{% set ns = namespace(n=0) %}{% for c in m.content %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n }}",
)  # fmt: skip
CHANGES = (
    ("-%}", "%}"), ("{%-", "{%"), (" == ", " != "), (" and ", " or "), ("loop.first", "loop.last"),
    ("| trim", ""), (".strip()", ""), ("is defined", "is not none"), ("is string", "is not none"),
    ("'user'", "'assistant'"), ("[-1]", "[0]"), ("| tojson", ""), (".content", "['content']"),
    ("is none", "is not defined"), ("messages[0]", "messages[-1]"), ("not ", ""),
)  # fmt: skip
"""Changes of one place of a published template."""
ROLES = ("user", "assistant", "system", "tool", "developer")
CONTENTS: tuple[Any, ...] = (
    "a dog", "", " \n a ", None, "<think>hm</think>\n\na", "</s><|im_end|>", "<tool_response>a",
    "{{ m }}", [{"type": "text", "text": "a"}], [], "\u65e5\u672c \U0001f600", "a\r\nb",
    [{"type": "text", "text": "a"}, {"type": "text", "text": "</s>"}], "x</think>", "Hi", "12",
)  # fmt: skip
ARGUMENTS: tuple[Any, ...] = ({"k": [1, None]}, '{"k": [1, null]}', {}, {"a": "x < y", "b": 2.5})
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'The weather, <now> & "here".',
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "A town"}},
            "required": ["place"],
        },
    },
}
SETTINGS: tuple[dict[str, bool], ...] = (
    {},
    {},
    {},
    {"enable_thinking": False},
    {"enable_thinking": True},
)
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}
SPECIALS = (*VARIABLES.values(), "<|im_start|>", "<|im_end|>")
THOUGHTS = ("reasoning_content", "thinking", "reasoning")

REASONS = {
    "parts": "parts of text are joined, since many templates would print a list",
    "text": "text is a part of text, where the template shows nothing else",
    "content": 'null and missing content is "" or as the template reads it, never "None"',
    "arguments": "arguments of calls are a mapping or text, as the template reads them",
    "calls": "calls come one by one, where the template shows one a message",
    "thoughts": "a thought has the names that the template reads",
    "keys": "keys are content, names of thoughts that are read, and what is not null",
    "special": "a special token that a user writes is no special token",
}
"""Why edgedec gives templates other messages."""
REFUSALS = {
    "has no content": "a message that is no answer has no content",
    "does not know": "the template does not name the role",
}
"""Why edgedec refuses messages that transformers renders, by words of its error."""


def drawn(rng: random.Random, published: Sequence[str]) -> tuple[str, Messages, dict[str, Any]]:
    """Returns a template, messages, and what else it renders: ``tools`` and variables."""
    source = rng.choice(published) if published and rng.random() < 0.75 else _of_pieces(rng)
    if rng.random() < 0.4:
        source = _changed(rng, source)
    roles = rng.choices(ROLES[:-1], k=rng.randint(1, 4))
    if rng.random() < 0.6:  # in the order of conversations
        roles = ["system"] * (rng.random() < 0.3) + ["user", "assistant"] * rng.randint(0, 2)
        roles += rng.choice((["user"], ["user", "assistant", "tool"]))
    messages = [_message(rng, role) for role in roles]
    return source, messages, {"tools": [TOOL] * (rng.random() < 0.3), **rng.choice(SETTINGS)}


def _of_pieces(rng: random.Random) -> str:
    pieces = "".join(rng.sample(PIECES, rng.randint(1, 3)))
    start, stop = rng.choice((("{%", "%}"), ("{%-", "-%}")))
    return (
        f"{{{{ bos_token }}}}{start} for m in messages {stop}\n[{{{{ m.role }}}}]{pieces}"
        f"{{{{ eos_token }}}}\n{start} endfor {stop}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )


def _changed(rng: random.Random, source: str) -> str:
    """Returns ``source`` with one place of it changed."""
    some = [pair for pair in CHANGES if pair[0] in source]
    if not some:
        return source
    old, new = rng.choice(some)
    parts = source.split(old)
    at = rng.randrange(1, len(parts))
    return old.join(parts[:at]) + new + old.join(parts[at:])


def _message(rng: random.Random, role: str) -> dict[str, Any]:
    optional = {"content": rng.choice(CONTENTS), "name": "n", rng.choice(THOUGHTS): "r"}
    chances = {"content": 0.95, "name": 0.1}
    if role == "assistant":
        some = [_call(rng, "f"), _call(rng, "g")][: rng.choice((1, 1, 1, 2))]
        optional["tool_calls"] = rng.choice((some, some, some, [], None))
        chances["tool_calls"] = 0.4
    if role == "tool":
        optional["tool_call_id"], chances["tool_call_id"] = "call0000f", 1
    kept = {k: value for k, value in optional.items() if rng.random() < chances.get(k, 0.2)}
    return {"role": role, **kept}


def _call(rng: random.Random, name: str) -> dict[str, Any]:
    function = {"name": name, "arguments": rng.choice(ARGUMENTS)}
    return {"id": f"call0000{name}", "type": "function", "function": function}


def theirs(source: str, messages: Messages, more: dict[str, Any]) -> str:
    """Returns what transformers renders.

    Raises:
        Exception: The template fails; it raises what it likes.
    """
    utils: Any = importlib.import_module("transformers.utils.chat_template_utils")
    normalized = [{k: v for k, v in m.items() if v is not None} for m in messages]  # as 5.24 does
    settings = {key: value for key, value in more.items() if key != "tools"}
    texts, _ = utils.render_jinja_template(
        [normalized], more["tools"] or None, None, source, add_generation_prompt=True,
        **VARIABLES, **settings,
    )  # fmt: skip
    return str(texts[0])


def ours(source: str, messages: Messages, more: dict[str, Any]) -> str:
    """Returns what edgedec renders."""
    backend = Backend(models.BPE())
    backend.add_special_tokens(list(SPECIALS))
    encoder = PromptEncoder(Tokenizer(backend), ChatTemplate(source, VARIABLES))
    settings = {key: value for key, value in more.items() if key != "tools"}
    return encoder.render(messages, more["tools"], settings)


def forms(messages: Messages) -> Iterator[tuple[list[str], Messages]]:
    """Yields each form that means the same, fewest changes first, with the keys of `REASONS`."""
    steps: list[tuple[str, list[Callable[[Messages], Messages] | None]]] = [
        ("parts", [None, _joined]),
        ("calls", [None, _one_by_one]),
        ("content", [None, *(partial(_with_content, content=c) for c in ("", None, ...))]),
        (
            "arguments",
            [None, *(partial(_with_arguments, is_text=is_text) for is_text in (False, True))],
        ),
        ("thoughts", [None, *(partial(_with_thoughts, names=n) for n in _NAMES)]),
        ("text", [None, _in_parts]),
    ]
    ways = sorted(product(*(step for _, step in steps)), key=lambda way: len(way) - way.count(None))
    for way in ways:
        shaped, changed = messages, []
        for (name, _), step in zip(steps, way, strict=True):
            before, shaped = shaped, shaped if step is None else step(shaped)
            changed += [name] if shaped != before else []
        yield changed, shaped


_NAMES = (THOUGHTS, *((name,) for name in THOUGHTS), ())


def _joined(messages: Messages) -> Messages:
    return [
        {**m, "content": "".join(part["text"] for part in m["content"])}
        if isinstance(m.get("content"), list)
        else m
        for m in messages
    ]


def _in_parts(messages: Messages) -> Messages:
    return [
        {**m, "content": [{"type": "text", "text": m["content"]}]}
        if isinstance(m.get("content"), str)
        else m
        for m in messages
    ]


def _with_content(messages: Messages, content: Any) -> Messages:
    """Returns messages with ``content`` where calls have none, and ``""`` where others do."""
    shaped = []
    for message in messages:
        if not message.get("content") and not isinstance(message.get("content"), list):
            text = content if message.get("tool_calls") else ""
            others = {key: value for key, value in message.items() if key != "content"}
            message = others if text is ... else {**others, "content": text}
        shaped.append(message)
    return shaped


def _with_arguments(messages: Messages, is_text: bool) -> Messages:
    def shaped(call: dict[str, Any]) -> dict[str, Any]:
        arguments = call["function"]["arguments"]
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        shown = json.dumps(value, ensure_ascii=False) if is_text else value
        return {**call, "function": {**call["function"], "arguments": shown}}

    return [
        {**m, "tool_calls": [shaped(call) for call in m["tool_calls"]]}
        if m.get("tool_calls")
        else m
        for m in messages
    ]


def _one_by_one(messages: Messages) -> Messages:
    """Returns a message for each call, with its result behind it; the text stands in the first."""
    shaped: Messages = []
    waiting = list(messages)
    while waiting:
        message = waiting.pop(0)
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            shaped.append(message)
            continue
        results = list(takewhile(lambda other: other["role"] == "tool", waiting))
        del waiting[: len(results)]
        for i, call in enumerate(calls):
            shaped.append({**(message if i == 0 else {"role": "assistant"}), "tool_calls": [call]})
            at = [m for m in results if m["tool_call_id"] == call["id"]][:1]
            shaped += at
            results = [m for m in results if not any(m is other for other in at)]
        shaped += results
    return shaped


def _with_thoughts(messages: Messages, names: Sequence[str]) -> Messages:
    shaped = []
    for message in messages:
        thought = next((message[name] for name in THOUGHTS if message.get(name)), None)
        others = {key: value for key, value in message.items() if key not in THOUGHTS}
        shaped.append({**others, **dict.fromkeys(names, thought)} if thought else message)
    return shaped


def _hidden(value: Any) -> Any:
    """Returns ``value`` with no special token in its texts."""
    if isinstance(value, dict):
        return {key: _hidden(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_hidden(item) for item in value]
    for special in SPECIALS if isinstance(value, str) else ():
        value = value.replace(special, _MARK + special[1:])
    return value


_MARK = "\ue000"


def compared(source: str, messages: Messages, more: dict[str, Any]) -> str:
    """Returns what becomes of a template and messages."""
    try:
        mine = ours(source, messages, more)
    except EdgedecError as error:
        return _refused(str(error), source, messages, more)
    is_drawn_refused = False
    for changed, shaped in forms(messages):
        for is_hidden in (False, True):
            try:
                text = theirs(source, _hidden(shaped) if is_hidden else shaped, more)
            except Exception as error:  # templates raise what they like
                if "generator is not JSON" in str(error):
                    return "rendered here: transformers writes no generator as JSON"
                is_drawn_refused |= not changed
                continue
            if mine == text.replace(_MARK, "<"):
                names = [*changed, *(["special"] if is_hidden else [])]
                return f"equal, but {' and '.join(names)}" if names else "equal"
    if KEYS in source and compared(source.replace(KEYS, ""), messages, more).startswith("equal"):
        return "equal, but keys"
    return "rendered here alone" if is_drawn_refused else "differs"


def _refused(error: str, source: str, messages: Messages, more: dict[str, Any]) -> str:
    """Returns what a refusal is: transformers refuses, too, or edgedec does on purpose, or not."""
    rendered = []
    for changed, shaped in forms(messages):
        if "text" not in changed:
            with suppress(Exception):  # templates raise what they like
                theirs(source, shaped, more)
                rendered.append(changed)
    if not rendered:
        return "both refuse"
    for words, reason in REFUSALS.items():
        if words in error:
            return f"refused: {reason}"
    if any(message.get("content") == [] for message in messages) and [] in rendered:
        return "refused: no parts are an empty text, which the template refuses"
    return f"refused here alone: {error[:150]}"


@cache
def read_published(folder: Path) -> tuple[str, ...]:
    """Returns the templates under ``folder``, of ``*.jinja`` and ``tokenizer_config.json``."""
    sources = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.jinja"))]
    for path in sorted(folder.rglob("tokenizer_config.json")):
        template = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        named = template if isinstance(template, list) else [{"template": template}]
        sources += [use["template"] for use in named if isinstance(use["template"], str)]
    return tuple(sources)


def main() -> int:
    """Tries templates; prints how many came out how, and those that differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tries", type=int, default=500)
    parser.add_argument("--seconds", type=int, default=500)
    parser.add_argument(
        "--templates", default=os.environ.get("EDGEDEC_TEMPLATES"), metavar="FOLDER",
        help="with published ones: *.jinja and tokenizer_config.json",
    )  # fmt: skip
    options = parser.parse_args()
    published = read_published(Path(options.templates)) if options.templates else ()
    outcomes: Counter[str] = Counter()

    def piece(seed: int) -> int:
        case = drawn(random.Random(seed), published)
        outcome = compared(*case)
        outcomes[outcome.partition(" alone:")[0]] += 1
        if outcome.startswith(("differs", "rendered here alone", "refused here")):
            print(json.dumps([seed, outcome, *case]), file=sys.stderr)
        return 1

    return run_pieces("chat_templates", options.tries, options.seconds, piece, outcomes)


if __name__ == "__main__":
    sys.exit(main())
