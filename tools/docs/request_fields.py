"""Writes `docs/request-fields.md`: what `edgedec serve` does with each field of a request.

python tools/docs/request_fields.py > docs/request-fields.md
"""

from __future__ import annotations

from collections.abc import Mapping

from edgedec.apps.serve.api import (
    anthropic,
    llama_server,
    ollama,
    openai_chat,
    openai_completions,
    openai_responses,
)
from edgedec.apps.serve.api.fields import Body, Refusal
from edgedec.apps.serve.handlers import DetokenizeBody, TokenizeBody

HEAD = """# Fields of requests

[`edgedec serve`](serving.md) uses a field, refuses it by name, or knows that no answer depends on
it. A refused field may have the value that asks for nothing: empty, 0, `false`, or what the table
adds. Fields that are in no table have no effect, and the log names them.

`tools/docs/request_fields.py` writes these tables from the program.

Limits:

- `samplers` turns off the samplers that it leaves out. An order that would change the text is
  refused: penalties, `dry`, `temperature`, `top_n_sigma`, `top_k`, `typ_p`, `top_p`, `min_p`,
  `xtc` is the order here. The temperature may also come last, as in llama.cpp. Only `/infill`
  reads the name `infill`; the temperature decides in its place.
- Penalties count the whole text. `repeat_last_n` and `dry_penalty_last_n` may be 0, -1, or at
  least as long as the text.
- `t_max_predict_ms` counts from the first text, and ends an answer once a line is complete.
- When the budget of a thought is spent, its closing mark follows, and then the answer. The mark
  does not count. 0 switches thoughts off, and -1 is no limit.
- `/apply-template` reads what chats read, and uses messages, tools, `tool_choice`, and the fields
  about thoughts.
- `/tokenize` reads special tokens as text unless `parse_special` is true.
"""

ADDRESSES: Mapping[str, tuple[str, type[Body]]] = {
    "OpenAI's chat": ("/v1/chat/completions", openai_chat.ChatBody),
    "OpenAI's completions": ("/v1/completions", openai_completions.CompletionBody),
    "OpenAI's responses": ("/v1/responses", openai_responses.ResponsesBody),
    "Anthropic's messages": ("/v1/messages", anthropic.MessagesBody),
    "Ollama's chat": ("/api/chat", ollama.ChatBody),
    "Ollama's texts": ("/api/generate", ollama.GenerateBody),
    "Ollama's `options`": ("in both of Ollama's", ollama.Options),
    "llama-server's completions": ("/completion", llama_server.CompletionBody),
    "llama-server's infills": ("/infill", llama_server.InfillBody),
    "llama-server's tokens": ("/tokenize", TokenizeBody),
    "llama-server's texts of tokens": ("/detokenize", DetokenizeBody),
}
"""The addresses by title, and what each reads."""


def page() -> str:
    """Returns the text of the page."""
    return "\n".join([HEAD, *map(_section, ADDRESSES)])


def _section(title: str) -> str:
    address, body = ADDRESSES[title]
    lines = [f"## {title}", "", f"`{address}`" if address[0] == "/" else address, ""]
    lines += ["| what happens | fields |", "|---|---|", f"| used | {_names(used(body))} |"]
    lines += [f"| refused: {reason} | {names} |" for reason, names in _refused(body).items()]
    if without_effect(body):
        lines.append(f"| without effect | {_names(without_effect(body))} |")
    return "\n".join(lines) + "\n"


def used(body: type[Body]) -> list[str]:
    """Returns the fields that an answer depends on."""
    return [field.alias or name for name, field in body.model_fields.items()]


def without_effect(body: type[Body]) -> list[str]:
    """Returns the fields that may have any value."""
    return [name for name, row in body.others.items() if row is None and name not in used(body)]


def refusals(body: type[Body]) -> dict[str, Refusal]:
    """Returns the fields that are refused, and why."""
    rows = body.others.items()
    return {name: row for name, row in rows if row is not None and name not in used(body)}


def _refused(body: type[Body]) -> dict[str, str]:
    refused: dict[str, list[str]] = {}
    for name, row in refusals(body).items():
        unless = ", ".join(f"`{value}`" for value in row.unless)
        reason = row.reason + (f"; unless {unless}" if unless else "")
        refused.setdefault(reason, []).append(name)
    return {reason: _names(names) for reason, names in refused.items()}


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


if __name__ == "__main__":
    print(page(), end="")
