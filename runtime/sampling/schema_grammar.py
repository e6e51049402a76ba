"""Grammars of JSON schemas, as llguidance reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from edgedec.models.errors import ConfigError, RefusedGrammarError
from edgedec.models.installation import install_command
from edgedec.runtime.sampling.exact_schema import (
    check_steps,
    exact_grammar,
    is_unsatisfiable,
    long_numbers,
    needs_exact_numbers,
    read_schema,
    why_empty,
    write_schema,
)
from edgedec.runtime.sampling.schema_narrowing import (
    narrowed,
    with_real_days,
    without_literal_patterns,
    without_patterns,
)
from edgedec.runtime.sampling.schema_patterns import with_plain_classes
from edgedec.runtime.sampling.schema_recursion import endless, without_endless
from edgedec.runtime.sampling.schema_ways import UnsupportedKeywordError

Grammar = dict[str, Any]
"""An entry of llguidance's list of grammars, without a name."""

SPACE = r"( |\n{1,2}[ \t]{0,20})?"
"""White space between the tokens of JSON: without a bound a model may write nothing else.

Source: ggml-org/llama.cpp ``common/json-schema-to-grammar.cpp`` (MIT).
"""

_ANY_SPACE = r"[\x20\x0A\x0D\x09]+"
_LENIENT = (
    '; change the schema, or put "x-guidance": {"lenient": true} into it to have what cannot be '
    "enforced ignored"
)


def schema_grammar(text: str, check: Callable[[Grammar], str] | None = None) -> Grammar:
    """Returns the grammar of the JSON that follows a schema.

    text: the schema, valid JSON. check: compiles a grammar and returns why it is refused, or
        nothing; `refusal` by default.

    Raises:
        ConfigError: The schema is refused, by the keyword, or llguidance is missing.
    """
    check = check or refusal
    grammar, reason = _of_schema(text, check)
    if reason:
        hint = _hint(text, check)
        raise RefusedGrammarError(f"json_schema is refused: {one_line(_by_keyword(reason))}{hint}")
    return grammar


def constraint_grammar(kind: str, text: str) -> Grammar:
    """Returns the grammar of what an output has to follow.

    kind, text: as `GenerationConfig.constraint` states them.

    Raises:
        ConfigError: It is refused.
    """
    if kind == "json_schema":
        return schema_grammar(text)
    lark = text if kind == "grammar" else _lark_of_regex(text)
    if reason := refusal({"lark_grammar": lark}):
        raise RefusedGrammarError(f"{kind} is refused: {one_line(reason)}")
    return {"lark_grammar": lark}


def _lark_of_regex(text: str) -> str:
    made = json.loads(llguidance().LLMatcher.grammar_from_regex(text))
    return str(made["grammars"][0]["lark_grammar"])


def refusal(grammar: Grammar) -> str:
    """Returns why a grammar is refused; empty if it is not."""
    matchers = llguidance().LLMatcher
    try:
        return str(matchers.validate_grammar(json.dumps({"grammars": [grammar]}), None))
    except ValueError as error:
        return str(error)


def is_known_pattern(pattern: str) -> bool:
    """Whether an expression can be enforced."""
    return not refusal({"json_schema": {"type": "string", "pattern": pattern}})


def space_lines(text: str | None) -> str:
    """Returns the lines of a Lark grammar that shares its white space with a schema's JSON.

    text: the schema; None allows none.
    """
    options: dict[str, Any] = {"whitespace_flexible": False}
    if text is not None:
        options = _options(_with_options(json.loads(text)))
    pattern = options.get("whitespace_pattern")
    if pattern is None and options.get("whitespace_flexible", True):
        pattern = _ANY_SPACE
    if not isinstance(pattern, str):
        return ""
    pattern = pattern.replace("/", r"\/")
    return f'%llguidance {{"ignore_once": true}}\n%ignore /{pattern}/\n'


def llguidance() -> Any:
    """Returns the library.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        import llguidance
    except ImportError:
        raise ConfigError(
            f"schemas, expressions and grammars need llguidance: {install_command('grammar')}"
        ) from None
    return llguidance


def one_line(text: str) -> str:
    """Returns what the library says, without the state it adds for those who work on it."""
    text = " ".join(text.partition("<state>")[0].split())
    text = text.replace("NoExtensionBias", "no text fits it")
    return text if len(text) <= 300 else f"{text[:297]}..."


def _of_schema(text: str, check: Callable[[Grammar], str]) -> tuple[Grammar, str]:
    """Returns the grammar of a schema, or of one that says the same in other words."""
    read = with_plain_classes(read_schema(text))
    schema, first = with_real_days(without_literal_patterns(read)), ""
    for variant in _in_other_words(schema):
        grammar, reason = _checked(variant, text, check)
        reason = reason or endless(variant)
        if not reason and (finite := without_endless(variant)) != variant:
            grammar, reason = _checked(finite, text, check)
        if not reason:
            return grammar, ""
        if is_unsatisfiable(reason):
            reason = why_empty(variant, _schema_refusal) or reason
        first = first or reason
    return {}, first


def _checked(schema: Any, text: str, check: Callable[[Grammar], str]) -> tuple[Grammar, str]:
    """Returns the grammar of a schema, and why it is refused. text: of the original."""
    try:
        grammar = _grammar(schema, text)
    except UnsupportedKeywordError as error:
        return {}, str(error)
    reason = check(grammar)
    if reason and "lark_grammar" in grammar:  # whose text nobody wrote
        keyword = next(long_numbers(schema))
        reason = f"{keyword}: the library refuses numbers this long: use fewer digits"
    return grammar, reason


def _in_other_words(schema: Any) -> Iterator[Any]:
    """Yields a schema, and those that allow no more than it, or as much as it is lenient."""
    yield schema
    schema = narrowed(schema)
    yield without_patterns(schema, is_known_pattern) if _is_lenient(schema) else schema


def _grammar(schema: Any, text: str) -> Grammar:
    """Returns the grammar of a schema. text: of the original.

    Raises:
        UnsupportedKeywordError: A keyword cannot be enforced beside long numbers.
    """
    schema = _with_options(schema)
    if not needs_exact_numbers(schema):
        check_steps(schema)
        return {"json_schema": json.loads(write_schema(schema))}
    lark = exact_grammar(schema, space_lines(text), _options(schema), _schema_refusal)
    return {"lark_grammar": lark}


def _schema_refusal(schema: Any) -> str:
    return refusal({"json_schema": schema})


def _hint(text: str, check: Callable[[Grammar], str]) -> str:
    """Returns what to do about a schema that is refused."""
    schema = json.loads(text)
    if isinstance(schema, dict) and not _is_lenient(schema):
        loose = {**schema, "x-guidance": {**_options(schema), "lenient": True}}
        if not _of_schema(json.dumps(loose), check)[1]:
            return _LENIENT
    return "; change the schema"


def _options(schema: Any) -> dict[str, Any]:
    """Returns what a schema says to llguidance."""
    options = schema.get("x-guidance") if isinstance(schema, Mapping) else None
    return options if isinstance(options, dict) else {}


def _is_lenient(schema: Any) -> bool:
    return _options(schema).get("lenient") is True


def _by_keyword(reason: str) -> str:
    """Returns why a schema is refused, with the keyword where the library leaves it out."""
    if reason.startswith("regex parse error"):
        return f"pattern: {reason}"
    return f"$ref: {reason}" if reason.startswith(("Pointer ", "Resource ")) else reason


def _with_options(schema: Any) -> Any:
    """Returns ``schema`` with all escapes of letters and bounded white space, unless it differs."""
    schema = {} if schema is True else schema
    if not isinstance(schema, Mapping):
        return schema
    options = schema.get("x-guidance", {})
    if not isinstance(options, Mapping):
        return schema
    usual: dict[str, Any] = {"json_allow_general_unicode_escapes": True}
    if not any(key.startswith("whitespace_") for key in options):
        usual["whitespace_pattern"] = SPACE
    return {**schema, "x-guidance": {**usual, **options}}
