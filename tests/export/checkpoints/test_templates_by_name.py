"""Templates for conversations with tools, which publishers keep beside the usual one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.checkpoints.safetensors_dir import HuggingFaceTexts
from edgedec.runtime.text.chat_template import ChatTemplate

transformers = pytest.importorskip("transformers", reason="needs the dev extra")

MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
LOOP = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
PLAIN = {
    "one line": LOOP,
    "line ends around": f"\n{LOOP}\n\n",
    "a line end behind": f"{LOOP}assistant:\n",
    "blanks around": f"  \n  {LOOP}  \n   ",
    "trims itself": "{%- set x = 1 -%}\n{{- messages | length }}\n{%- if x %} x {% endif -%}\n",
    "comments": "{# first #}\nx{#- last -#}\n",
}
WITH_TOOLS = {
    "uses them": "\n{{ tools | tojson(indent=2) }}\n" + LOOP,
    "macro": "{% macro t(x) %}<{{ x.function.name }}>{% endmacro %}{{ t(tools[0]) }}  \n  ",
}
FILES = {
    "tokenizer_config.json": lambda default, of_tools: {
        "tokenizer_config.json": {
            "chat_template": [
                {"name": "default", "template": default},
                {"name": "tool_use", "template": of_tools},
                {"name": "rag", "template": "{{ documents[0] }}"},
            ]
        }
    },
    "folder": lambda default, of_tools: {
        "chat_template.jinja": default,
        "additional_chat_templates/tool_use.jinja": of_tools,
        "additional_chat_templates/rag.jinja": "{{ documents[0] }}",
    },
}


def write(folder: Path, files: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 9}))
    Tokenizer(models.BPE({"a": 0}, [])).save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize("where", FILES)
@pytest.mark.parametrize("of_tools", WITH_TOOLS)
@pytest.mark.parametrize("plain", PLAIN)
def test_as_transformers(tmp_path: Path, plain: str, of_tools: str, where: str) -> None:
    write(tmp_path, FILES[where](PLAIN[plain], WITH_TOOLS[of_tools]))
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    template = HuggingFaceTexts(tmp_path).chat_template()
    assert template is not None
    ours = ChatTemplate(template)
    assert ours.reads_tools
    for tools in ([], TOOLS):
        assert ours.render(MESSAGES, tools) == theirs.apply_chat_template(
            MESSAGES, tools=tools or None, tokenize=False, add_generation_prompt=True
        )


def test_without_a_usual_one_there_is_none(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "x"}]
    write(tmp_path, {"tokenizer_config.json": {"chat_template": named}})
    assert HuggingFaceTexts(tmp_path).chat_template() is None


def test_of_gguf_files(make_gguf: Any) -> None:
    key = "tokenizer.chat_template"
    path = make_gguf("llama", metadata={key: "plain", f"{key}.tool_use": "{{ tools[0].type }}"})
    template = ChatTemplate(open_checkpoint(str(path)).chat_template() or "")
    assert template.render(MESSAGES) == "plain"
    assert template.render(MESSAGES, TOOLS) == "function"
