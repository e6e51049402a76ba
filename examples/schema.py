"""Makes a model answer with JSON of a given form, and reads it.

python examples/schema.py smollm2.edgedec

Needs the extra `grammar`. The form is certain; whether the content is true is the model's affair.
"""

from __future__ import annotations

import json
import sys

import edgedec

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "country": {"type": "string", "maxLength": 20},
        "is_capital": {"type": "boolean"},
    },
    "required": ["city", "country", "is_capital"],
    "additionalProperties": False,
}


def main(bundle: str) -> None:
    """Prints what the model answers in the form of SCHEMA."""
    messages = [{"role": "user", "content": "Describe Paris as JSON."}]
    # What the schema leaves no choice about, such as the keys, is drafted and costs no passes.
    config = edgedec.GenerationConfig(max_new_tokens=64, json_schema=SCHEMA, method="grammar")
    with edgedec.load(bundle) as engine:
        result = engine.generate(messages, config)
    answer = json.loads(result.text)
    for name, value in answer.items():
        print(f"{name}: {value}")
    print(f"{result.stats.n_accepted} of {result.n_new_tokens} tokens were drafted")


if __name__ == "__main__":
    main(sys.argv[1])
