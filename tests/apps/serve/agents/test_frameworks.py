"""Agents of Python packages do a task of three calls, over each interface that they speak."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import ANSWER, TASK, Task
from .scripted_model import call

TURNS = (
    call("list_files"),
    "I read it.\n" + call("read_file", name="notes.txt"),
    call("write_file", name="answer.txt", text=ANSWER),
)

KEY = {"api_key": "none"}

pytestmark = pytest.mark.e2e


@pytest.fixture
def url(serve: Callable[..., Any]) -> str:
    return str(serve(*TURNS).url)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("interface", ["Chat", "Responses"])
def test_openai_agents(url: str, task: Task, interface: str, is_streamed: bool) -> None:
    agents = pytest.importorskip("agents", reason="needs openai-agents")
    import openai

    agents.set_tracing_disabled(True)
    kind = {"Chat": "OpenAIChatCompletionsModel", "Responses": "OpenAIResponsesModel"}[interface]
    tools = [agents.function_tool(f) for f in (task.list_files, task.read_file, task.write_file)]

    async def run() -> str:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", **KEY) as client:
            model = getattr(agents, kind)("scripted", client)
            agent = agents.Agent("clerk", instructions="Do it.", model=model, tools=tools)
            if not is_streamed:
                return str((await agents.Runner.run(agent, TASK)).final_output)
            result = agents.Runner.run_streamed(agent, TASK)
            async for _ in result.stream_events():
                pass
            return str(result.final_output)

    task.check(asyncio.run(run()))


def pydantic_model(interface: str, url: str) -> Any:
    """Returns Pydantic AI's model of an interface."""
    path = f"pydantic_ai.{{}}.{'anthropic' if interface == 'Messages' else 'openai'}"
    providers, module = (
        pytest.importorskip(path.format(part), reason="needs pydantic-ai-slim[openai,anthropic]")
        for part in ("providers", "models")
    )
    if interface == "Messages":
        provider = providers.AnthropicProvider(base_url=url, **KEY)
        return module.AnthropicModel("scripted", provider=provider)
    kind = module.OpenAIChatModel if interface == "Chat" else module.OpenAIResponsesModel
    return kind("scripted", provider=providers.OpenAIProvider(base_url=f"{url}/v1", **KEY))


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("interface", ["Chat", "Responses", "Messages"])
def test_pydantic_ai(url: str, task: Task, interface: str, is_streamed: bool) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai", reason="needs pydantic-ai-slim")
    tools = [task.list_files, task.read_file, task.write_file]
    agent = pydantic_ai.Agent(pydantic_model(interface, url), tools=tools, instructions="Do it.")

    async def drain(_: Any, events: Any) -> None:  # `run_stream` would end at the first text
        async for _ in events:
            pass

    run = agent.run(TASK, event_stream_handler=drain if is_streamed else None)
    task.check(str(asyncio.run(run).output))


def langchain_model(interface: str, url: str) -> Any:
    """Returns LangChain's model of an interface."""
    if interface == "Messages":
        anthropic = pytest.importorskip("langchain_anthropic")
        return anthropic.ChatAnthropic(model="scripted", base_url=url, **KEY)
    if interface == "Ollama":
        ollama = pytest.importorskip("langchain_ollama")
        return ollama.ChatOllama(model="scripted", base_url=url)
    openai = pytest.importorskip("langchain_openai")
    is_new = interface == "Responses"
    return openai.ChatOpenAI(
        model="scripted", base_url=f"{url}/v1", use_responses_api=is_new, **KEY
    )


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("interface", ["Chat", "Responses", "Messages", "Ollama"])
def test_langchain(url: str, task: Task, interface: str, is_streamed: bool) -> None:
    agents = pytest.importorskip("langchain.agents", reason="needs langchain")
    tools = [task.list_files, task.read_file, task.write_file]
    agent = agents.create_agent(langchain_model(interface, url), tools, system_prompt="Do it.")
    asked = {"messages": [{"role": "user", "content": TASK}]}
    if is_streamed:
        for _, found in agent.stream(asked, stream_mode=["messages", "values"]):
            last = found
        messages = last["messages"]
    else:
        messages = agent.invoke(asked)["messages"]
    assert len(messages) == 1 + 2 * len(TURNS) + 1
    task.check(messages[-1].text)
