"""Each field that client packages can send is used, refused by name, or known to be harmless."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from edgedec.apps.serve.api import (
    anthropic,
    embeddings,
    llama_server,
    ollama,
    openai_chat,
    openai_completions,
    openai_responses,
    thinking,
)
from edgedec.apps.serve.api.endpoint import AnswerHead
from edgedec.apps.serve.api.fields import Body
from edgedec.apps.serve.core import ServeError
from edgedec.models.errors import SessionError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.text.chat_template import ChatTemplate

ASK = [{"role": "user", "content": "Hi"}]
CHAT, COMPLETIONS, RESPONSES = (
    openai_chat.ENDPOINT,
    openai_completions.ENDPOINT,
    openai_responses.ENDPOINT,
)
MESSAGES, OLLAMA_CHAT, GENERATE = anthropic.ENDPOINT, ollama.CHAT, ollama.GENERATE
LLAMA = llama_server.COMPLETION
BODIES: dict[Any, dict[str, Any]] = {
    CHAT: {"messages": ASK},
    COMPLETIONS: {"prompt": "Hi"},
    RESPONSES: {"input": "Hi"},
    MESSAGES: {"messages": ASK, "max_tokens": 4},
    OLLAMA_CHAT: {"model": "a", "messages": ASK},
    GENERATE: {"model": "a", "prompt": "Hi"},
    LLAMA: {"prompt": "Hi"},
}


def asked(endpoint: Any, **fields: Any) -> Any:
    data = json.dumps({**BODIES[endpoint], **fields}).encode()
    return endpoint.read(data, AnswerHead("1", 0)).request


def rows(kind: type[Body]) -> set[str]:
    """Returns the fields that have a row: those that are used, and the others."""
    used = {field.alias or name for name, field in kind.model_fields.items()}
    return used | set(kind.others)


def keys(kind: Any) -> set[str]:
    """Returns the fields of a client's type, a TypedDict or a model of pydantic."""
    if hasattr(kind, "model_fields"):
        return set(kind.model_fields)
    if hasattr(kind, "__args__"):  # one of several
        return set().union(*map(keys, kind.__args__))
    return set(kind.__required_keys__ | kind.__optional_keys__)


def without_row(kind: type[Body], *clients: Any) -> set[str]:
    return set().union(*map(keys, clients)) - rows(kind)


def test_openai_s_package() -> None:
    pytest.importorskip("openai")
    from openai.types import (
        chat,
        completion_create_params,
        embedding_create_params,
        shared_params,
    )
    from openai.types.chat import completion_create_params as chat_params
    from openai.types.responses import (
        ResponseTextConfigParam,
        ToolParam,
        response_create_params,
    )

    chat_request = chat_params.CompletionCreateParamsNonStreaming
    text_request = completion_create_params.CompletionCreateParamsNonStreaming
    response_request = response_create_params.ResponseCreateParamsNonStreaming
    messages = [
        chat.ChatCompletionUserMessageParam,
        chat.ChatCompletionAssistantMessageParam,
        chat.ChatCompletionSystemMessageParam,
        chat.ChatCompletionDeveloperMessageParam,
        chat.ChatCompletionToolMessageParam,
        chat.ChatCompletionFunctionMessageParam,
    ]
    checked: list[tuple[type[Body], list[Any]]] = [
        (openai_chat.ChatBody, [chat_request]),
        (openai_completions.CompletionBody, [text_request]),
        (embeddings.EmbeddingsBody, [embedding_create_params.EmbeddingCreateParams]),
        (openai_responses.ResponsesBody, [response_request]),
        (openai_chat.ChatMessage, messages),
        (openai_chat.AnyTool, [chat.ChatCompletionFunctionToolParam]),
        (openai_chat.FunctionTool, [shared_params.FunctionDefinition]),
        (openai_chat.StreamOptions, [chat.ChatCompletionStreamOptionsParam]),
        (openai_chat.ResponseFormat, [shared_params.ResponseFormatJSONSchema]),
        (openai_responses.ResponseTool, [ToolParam]),
        (openai_responses.TextOptions, [ResponseTextConfigParam]),
        (thinking.Reasoning, [shared_params.Reasoning]),
    ]
    assert [(kind.__name__, odd) for kind, c in checked if (odd := without_row(kind, *c))] == []


def test_anthropic_s_package() -> None:
    client = pytest.importorskip("anthropic")
    types = client.types
    from anthropic.types import message_count_tokens_params, message_create_params
    from anthropic.types.beta import message_create_params as beta_params

    requests = [
        message_create_params.MessageCreateParamsNonStreaming,
        beta_params.MessageCreateParamsNonStreaming,
    ]
    choices = [types.ToolChoiceAutoParam, types.ToolChoiceAnyParam, types.ToolChoiceToolParam]
    blocks = [types.TextBlockParam, types.ToolUseBlockParam, types.ToolResultBlockParam]
    thoughts = [types.ThinkingConfigEnabledParam, types.ThinkingConfigDisabledParam]
    checked: list[tuple[type[Body], list[Any]]] = [
        (anthropic.MessagesBody, requests),
        (anthropic.CountBody, [message_count_tokens_params.MessageCountTokensParams]),
        (anthropic.ToolIn, [types.ToolParam]),
        (anthropic.MessageIn, [types.MessageParam]),
        (anthropic.ChoiceIn, choices),
        (anthropic.Block, [*blocks, types.ThinkingBlockParam]),
        (anthropic.OutputConfig, [types.OutputConfigParam]),
        (thinking.ThinkingIn, thoughts),
    ]
    assert [(kind.__name__, odd) for kind, c in checked if (odd := without_row(kind, *c))] == []


def test_ollama_s_package() -> None:
    client = pytest.importorskip("ollama")
    types = client._types
    checked: list[tuple[type[Body], list[Any]]] = [
        (ollama.ChatBody, [types.ChatRequest]),
        (ollama.GenerateBody, [types.GenerateRequest]),
        (embeddings.EmbedBody, [types.EmbedRequest]),
        (embeddings.OldEmbedBody, [types.EmbeddingsRequest]),
        (ollama.Options, [types.Options]),
        (ollama.ChatMessage, [types.Message]),
        (openai_chat.AnyTool, [types.Tool]),
        (openai_chat.FunctionTool, [types.Tool.Function]),
    ]
    assert [(kind.__name__, odd) for kind, c in checked if (odd := without_row(kind, *c))] == []


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("repeat_penalty", 1.5, "repetition_penalty"),
        ("repetition_penalty", 1.5, "repetition_penalty"),
        ("min_tokens", 3, "min_new_tokens"),
        ("min_new_tokens", 3, "min_new_tokens"),
    ],
)
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, RESPONSES, LLAMA])
def test_both_names_of_a_setting(endpoint: Any, field: str, value: float, name: str) -> None:
    assert asked(endpoint, **{field: value}).settings["sampling"] == {name: value}


REFUSED = [
    (CHAT, {"audio": {"voice": "a", "format": "wav"}}, "audio"),
    (CHAT, {"modalities": ["text", "audio"]}, "modalities"),
    (CHAT, {"functions": [{"name": "f"}]}, "functions"),
    (CHAT, {"function_call": {"name": "f"}}, "function_call"),
    (CHAT, {"guided_json": {"type": "object"}}, "guided_json"),
    (CHAT, {"web_search_options": {"search_context_size": "low"}}, "web_search_options"),
    (CHAT, {"reasoning_effort": "huge"}, "reasoning_effort"),
    (COMPLETIONS, {"best_of": 3}, "best_of"),
    (RESPONSES, {"background": True}, "background"),
    (RESPONSES, {"conversation": "conv_1"}, "conversation"),
    (RESPONSES, {"prompt": {"id": "p"}}, "prompt"),
    (MESSAGES, {"mcp_servers": [{"name": "s"}]}, "mcp_servers"),
    (MESSAGES, {"container": "c"}, "container"),
    (MESSAGES, {"thinking": {"type": "often"}}, "thinking.type"),
    (MESSAGES, {"output_config": {"format": {"type": "yaml"}}}, "output_config"),
    (OLLAMA_CHAT, {"messages": [{**ASK[0], "images": ["aGk="]}]}, "images"),
    (GENERATE, {"images": ["aGk="]}, "images"),
    (GENERATE, {"context": [1, 2]}, "context"),
    (GENERATE, {"template": "{{ .Prompt }}"}, "template"),
    (OLLAMA_CHAT, {"options": {"tfs_z": 0.5}}, "options.tfs_z"),
    (CHAT, {"n_indent": 4}, "n_indent"),
    (COMPLETIONS, {"t_max_predict_ms": 500}, "t_max_predict_ms"),
    (OLLAMA_CHAT, {"options": {"t_max_predict_ms": 500}}, "options.t_max_predict_ms"),
    (LLAMA, {"n_indent": -1}, "n_indent"),
    (LLAMA, {"dynatemp_range": 0.5}, "dynatemp_range"),
    (LLAMA, {"grammar_lazy": True}, "grammar_lazy"),
    (LLAMA, {"return_tokens": True}, "return_tokens"),
    (LLAMA, {"lora": [{"id": 0, "scale": 1}]}, "lora"),
]


@pytest.mark.parametrize(("endpoint", "fields", "words"), REFUSED)
def test_what_cannot_be_done_is_refused_by_name(endpoint: Any, fields: Any, words: str) -> None:
    with pytest.raises(ServeError, match=words) as caught:
        asked(endpoint, **fields)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (CHAT, {"audio": None, "functions": [], "best_of": 1, "modalities": ["text"]}),
        (CHAT, {"store": True, "user": "me", "metadata": {"a": "b"}, "service_tier": "flex"}),
        (CHAT, {"function_call": "auto", "min_tokens": 0, "verbosity": "low"}),
        (RESPONSES, {"background": False, "include": ["reasoning.encrypted_content"]}),
        (MESSAGES, {"metadata": {"user_id": "a"}, "context_management": {"edits": []}}),
        (GENERATE, {"images": [], "context": None, "width": 0}),
        (OLLAMA_CHAT, {"options": {"num_ctx": 4096, "tfs_z": 1.0, "num_thread": None}}),
        (LLAMA, {"n_indent": 0, "t_max_predict_ms": -1, "sse_ping_interval": 5}),
        (LLAMA, {"samplers": ["top_k"], "t_max_prompt_ms": 1, "lora": [], "dynatemp_range": 0}),
    ],
)
def test_what_asks_for_nothing_is_not_refused(
    endpoint: Any, fields: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert asked(endpoint, **fields).prompts
    assert not caplog.records


def test_fields_without_a_row_are_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        asked(CHAT, never_heard_of_it=1)
        asked(CHAT, never_heard_of_it=2)
    assert [record.getMessage() for record in caplog.records] == [
        "the field 'never_heard_of_it' is not known here, and has no effect"
    ]


OFF = {"enable_thinking": False, "thinking": False}
ON = {"enable_thinking": True, "thinking": True}


@pytest.mark.parametrize(
    ("endpoint", "fields", "variables"),
    [
        (CHAT, {"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
        (CHAT, {"reasoning_effort": "none"}, OFF),
        (CHAT, {"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        (CHAT, {"enable_thinking": False}, OFF),
        (CHAT, {"think": False}, OFF),
        (CHAT, {"thinking": {"type": "disabled"}}, OFF),
        (CHAT, {"reasoning": {"enabled": False}}, OFF),
        (CHAT, {"reasoning_budget": 0}, {**OFF, "thinking_budget": 0}),
        (CHAT, {"thinking_token_budget": 50}, {"thinking_budget": 50}),
        (CHAT, {"reasoning_budget": -1, "reasoning_effort": None}, {}),
        (RESPONSES, {"reasoning": {"effort": "none", "summary": "auto"}}, OFF),
        (RESPONSES, {"reasoning": {"effort": "high"}}, {"reasoning_effort": "high"}),
        (MESSAGES, {"thinking": {"type": "disabled"}}, OFF),
        (
            MESSAGES,
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            {**ON, "thinking_budget": 1024},
        ),
        (MESSAGES, {"thinking": {"type": "adaptive"}}, {}),
        (OLLAMA_CHAT, {"think": False}, OFF),
        (OLLAMA_CHAT, {"think": True}, ON),
        (OLLAMA_CHAT, {"think": "high"}, {"reasoning_effort": "high"}),
        (OLLAMA_CHAT, {"think": None}, {}),
        (GENERATE, {"think": False}, OFF),
    ],
)
def test_thinking_is_switched(endpoint: Any, fields: Any, variables: Any) -> None:
    assert asked(endpoint, **fields).prompts[0].variables == variables


def test_templates_read_variables() -> None:
    template = ChatTemplate("{{ 'off' if enable_thinking is false else 'on' }}", {"bos_token": ""})
    assert template.render([]) == "on"
    assert template.render([], (), {"enable_thinking": False}) == "off"
    for name in ("messages", "tools", "add_generation_prompt", "bos_token"):
        with pytest.raises(SessionError, match=name):
            template.render([], (), {name: []})


@pytest.mark.e2e
def test_ollama_s_log_probabilities_are_openai_s(server: Any) -> None:
    chat = {"messages": ASK, "logprobs": True, "top_logprobs": 2, "temperature": 0, "max_tokens": 4}
    _, found = server.ask("POST", "/v1/chat/completions", chat)
    expected = found["choices"][0]["logprobs"]["content"]
    options = {"temperature": 0, "num_predict": 4}
    body = {"model": "smollm2", "logprobs": True, "top_logprobs": 2, "options": options}
    for path, prompt in (("/api/chat", {"messages": ASK}), ("/api/generate", {"prompt": "Hi"})):
        _, _, raw = server.ask_raw("POST", path, {**body, **prompt})
        lines = [json.loads(line) for line in raw.splitlines()]
        assert [one for line in lines for one in line.get("logprobs", [])] == expected
        _, whole = server.ask("POST", path, {**body, **prompt, "stream": False})
        assert whole["logprobs"] == expected


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize("name", ["output_config", "output_format"])
def test_messages_with_a_schema(name: str) -> None:
    wanted: dict[str, Any] = {"type": "json_schema", "schema": SCHEMA}
    wanted = {"format": wanted} if name == "output_config" else wanted
    assert asked(MESSAGES, **{name: wanted}).settings["json_schema"] == SCHEMA


def test_tools_that_are_allowed() -> None:
    tools = [{"type": "function", "name": name, "parameters": None} for name in "abc"]
    named = [{"type": "function", "name": name} for name in "ac"]
    choice = {"type": "allowed_tools", "mode": "required", "tools": named}
    (prompt,) = asked(RESPONSES, tools=tools, tool_choice=choice).prompts
    assert [tool.name for tool in prompt.tools] == ["a", "c"]
    assert prompt.choice == "required"
    odd = {**choice, "tools": [{"type": "function", "name": "d"}]}
    with pytest.raises(ServeError, match="tool_choice names 'd'"):
        asked(RESPONSES, tools=tools, tool_choice=odd)


@pytest.mark.parametrize("api", [CHAT, OLLAMA_CHAT])
def test_a_function_in_the_form_of_responses_is_refused(api: Any) -> None:
    """Chats would offer nothing to the model."""
    flat = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": {"name": "f"}}, flat]
    with pytest.raises(ServeError, match=r"tools\.1 has no function"):
        asked(api, tools=tools)


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_tools_that_are_allowed_in_chats(mode: Any) -> None:
    chat = pytest.importorskip("openai.types.chat")
    tools = [{"type": "function", "function": {"name": name}} for name in "abc"]
    allowed = chat.ChatCompletionAllowedToolsParam(mode=mode, tools=[tools[0], tools[2]])
    choice = chat.ChatCompletionAllowedToolChoiceParam(type="allowed_tools", allowed_tools=allowed)
    (prompt,) = asked(CHAT, tools=tools, tool_choice=choice).prompts
    assert [tool.name for tool in prompt.tools] == ["a", "c"]
    assert prompt.choice == mode
    for odd, words in (
        ({"type": "function"}, "neither function nor allowed_tools"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": []}}, "mode"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools[:1]}},
            "tool_choice names 'a'",
        ),
    ):
        with pytest.raises(ServeError, match=words):
            asked(CHAT, tools=tools[1:], tool_choice=odd)


@pytest.mark.e2e
def test_a_last_message_of_the_assistant_is_continued(server: Any, engine: Engine) -> None:
    begun = {"role": "assistant", "content": "One, two, three,"}
    tokens = [*engine.encode(ASK), *engine.tokenizer.encode(begun["content"])]
    text = engine.generate(tokens, GenerationConfig(max_new_tokens=6)).text
    messages, greedy = [*ASK, begun], {"temperature": 0, "max_tokens": 6}
    body = {"messages": messages, **greedy}

    def said(**fields: Any) -> str:
        status, found = server.ask("POST", "/v1/chat/completions", {**body, **fields})
        assert status == 200, found
        content: str = found["choices"][0]["message"]["content"]
        return content

    assert said() == said(continue_final_message=True, add_generation_prompt=False) == text
    assert said(continue_final_message=False) != text
    found = server.ask("POST", "/v1/messages", body)[1]
    assert found["content"][0]["text"] == text
    options = {"temperature": 0, "num_predict": 6}
    asked = {"model": "smollm2", "messages": messages, "options": options, "stream": False}
    assert server.ask("POST", "/api/chat", asked)[1]["message"]["content"] == text
    wanted = {"type": "json_object"}
    status, found = server.ask("POST", "/v1/chat/completions", {**body, "response_format": wanted})
    assert (status, found["error"]["type"]) == (400, "invalid_request_error")
