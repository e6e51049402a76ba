"""From a core request to what an engine is given: token ids, settings, how to read the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from edgedec.apps.serve import tools
from edgedec.apps.serve.core import AUTO, NONE, REQUIRED, ChatPrompt, InfillPrompt, Prompt, invalid
from edgedec.apps.serve.role_order import written
from edgedec.models.errors import SessionError
from edgedec.runtime.config import CONSTRAINTS
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.sequences.prefill import check_fits
from edgedec.runtime.text.infill import InfillTokens, find_infill_tokens
from edgedec.runtime.text.prompt import PromptEncoder

_FOR_INFILL = 512
"""Most tokens of the context that are kept free for what is filled in."""


@dataclass(frozen=True)
class Prepared:
    """A prompt as an engine takes it.

    text: of the prompt, to be echoed; of other prompts than plain ones it is empty.
    settings: what the prompt adds to those of the request.
    tools: names of those that may be called.
    is_answer: the text does not go on from the prompt's, but begins anew.
    """

    tokens: list[int]
    text: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    is_answer: bool = False
    tools: frozenset[str] = frozenset()


def prepare(
    engine: Engine, prompt: Prompt, settings: Mapping[str, Any] = MappingProxyType({})
) -> Prepared:
    """Returns what ``prompt`` becomes.

    settings: of the request.

    Raises:
        ServeError: The model cannot do what is asked.
        SessionError: The prompt is empty, refused by the chat template, or too long.
    """
    engine.loaded.check_writes()
    if isinstance(prompt, ChatPrompt):
        prepared = _chat(engine, prompt, settings, engine.encoder)
    elif isinstance(prompt, InfillPrompt):
        prepared = _infill(engine, prompt)
    else:
        prepared = _plain(engine, prompt.text)
    check_fits(prepared.tokens, engine.context, engine.model.n_token_ids)
    return prepared


def _plain(engine: Engine, text: str | Sequence[int]) -> Prepared:
    tokens = engine.encode(text)
    if isinstance(text, str):
        return Prepared(tokens, text)
    check_fits(tokens, engine.context, engine.model.n_token_ids)
    return Prepared(tokens, engine.tokenizer.decode(list(text)))


def n_chat_tokens(engine: Engine, prompt: ChatPrompt) -> int:
    """Returns the number of tokens of a conversation, also if they do not fit the context."""
    return len(_chat(engine, prompt, {}, engine.encoder.without_limit()).tokens)


def chat_text(engine: Engine, prompt: ChatPrompt) -> str:
    """Returns the text that the chat template makes of a conversation."""
    prompt, begun = _without_begun(_with_choice(prompt))
    messages, described = _template_input(engine, prompt)
    text = written(lambda ms: engine.encoder.render(ms, described, prompt.variables), messages)
    return text + _end_of_thought(engine.encoder, text, prompt, begun) + begun


def _chat(
    engine: Engine, prompt: ChatPrompt, variables: Mapping[str, Any], encoder: PromptEncoder
) -> Prepared:
    prompt, begun = _without_begun(_with_choice(prompt))
    if begun and any(variables.get(name) is not None for name in CONSTRAINTS):
        raise invalid(
            "the last message is the assistant's, and a schema or grammar is given: a text that "
            "has begun cannot follow one; leave out one of them"
        )
    messages, described = _template_input(engine, prompt)
    tokens, rendered = written(
        lambda ms: encoder.encode_conversation(ms, described, prompt.variables), messages
    )
    if end := _end_of_thought(encoder, rendered, prompt, begun):
        tokens += encoder.encode_marks(end)
    if begun:
        tokens += engine.tokenizer.encode(begun)
    settings: dict[str, Any] = {"thought_budget": prompt.thought_budget}
    if prompt.tools:
        grammar = tools.grammar(prompt, variables, _has_parts(engine) and not begun)
        settings.update(dict.fromkeys(CONSTRAINTS), grammar=grammar)
    return Prepared(
        tokens,
        settings=settings,
        is_answer=not begun,
        tools=frozenset(tool.name for tool in prompt.tools),
    )


def _has_parts(engine: Engine) -> bool:
    """Whether calls are parts of an output, whose headers name the tool."""
    thoughts = engine.encoder.thoughts
    return thoughts is not None and thoughts.header is not None and engine.encoder.reads_tools


def _with_choice(prompt: ChatPrompt) -> ChatPrompt:
    """Returns ``prompt`` with the tools that its choice leaves."""
    if prompt.choice == NONE or not prompt.tools:
        return replace(prompt, tools=())
    if prompt.choice not in (AUTO, REQUIRED, *tools.names(prompt.tools)):
        raise invalid(f"tool_choice names {prompt.choice!r}, which is none of the tools")
    return prompt


def _without_begun(prompt: ChatPrompt) -> tuple[ChatPrompt, str]:
    """Returns ``prompt`` without the answer that has begun, and the text of that."""
    begun = prompt.begun
    return (replace(prompt, messages=prompt.messages[:-1]) if begun else prompt), begun


def _end_of_thought(encoder: PromptEncoder, rendered: str, prompt: ChatPrompt, begun: str) -> str:
    """Returns what has the model answer at once, if it is to, but the template cannot say it.

    It ends a thought that the template begins, or begins a part that is no thought. Where calls of
    tools are parts, the model chooses the part.
    """
    thoughts = encoder.thoughts
    is_off = prompt.variables.get("enable_thinking") is False
    if thoughts is None or not (begun or is_off):
        return ""
    state = thoughts.state_after(rendered)
    if state == "start" and (begun or not prompt.tools):
        return thoughts.answer
    return thoughts.closing if state == "thought" else ""


def _template_input(engine: Engine, prompt: ChatPrompt) -> tuple[list[Any], list[Any]]:
    """Returns the messages and tools that the chat template is given."""
    described = [tools.described(tool) for tool in prompt.tools]
    if described and not _knows_calls(engine, described):
        return tools.tools_in_system_message(prompt), []
    return list(prompt.messages), described


def _knows_calls(engine: Engine, described: list[dict[str, Any]]) -> bool:
    """Whether the chat template lists tools, and writes calls in the form that is read here."""
    if not engine.encoder.reads_tools:
        return False
    if _has_parts(engine):
        return True
    try:
        text = engine.encoder.render([{"role": "user", "content": "-"}], described)
    except SessionError:
        return False
    return tools.BEGIN in text


def _infill(engine: Engine, prompt: InfillPrompt) -> Prepared:
    marks = find_infill_tokens(engine.tokenizer)
    if marks is None:
        raise invalid("this model cannot fill in: its tokenizer has no tokens for that")
    encode = engine.tokenizer.encode
    room = max(8, engine.context - min(_FOR_INFILL, engine.context // 2) - 8)
    after = encode(prompt.after)[: room // 4]
    before = encode(prompt.before)[-(room - len(after)) :]
    begun = encode(prompt.begun)
    middle = [*marks.prompt(before, after), *begun]
    others = _others(engine, prompt, marks, room - len(middle))
    opening = engine.encoder.opening
    return Prepared([*opening, *others, *middle], settings={"stop_token_ids": marks.stops})


def _others(engine: Engine, prompt: InfillPrompt, marks: InfillTokens, room: int) -> list[int]:
    """Returns other files before the one at hand, the last ones that fit."""
    tokens_: list[int] = []
    mark = [] if marks.file is None else [marks.file]
    for name, text in reversed(prompt.others):
        tokens = [*mark, *engine.tokenizer.encode(f"{name}\n{text}\n")]
        if len(tokens_) + len(tokens) + len(mark) > room:
            break
        tokens_ = tokens + tokens_
    return tokens_ + mark if tokens_ else []
