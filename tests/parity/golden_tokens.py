"""What SmolLM2 writes by every way of decoding, kept in golden_tokens.json as it once was.

    make run
    python tests/parity/golden_tokens.py build/smollm2.edgedec > tests/parity/golden_tokens.json

records it again. Do that only where other tokens are meant, such as after a change of the kernels'
arithmetic or of the random numbers, and say in the commit why they are.

One file serves every machine: kernels of all instruction sets give the same bits, and a sampled
token is a function of its logits row, the seed and the position. Only float64 logarithms may
differ in their last bit from machine to machine, which matters where two tokens are nearer than
that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import edgedec
from edgedec import EngineOptions

N_TOKENS = 24
CONTEXT = 192
SEED = 7
CHAT = (
    "Name three rivers and the seas they flow into.",
    "What is 17 times 6? Explain each step.",
)
RAW = (
    "The old ferry left the harbour every morning at six, and",
    "def largest_gap(numbers):\n",
    "Repeat after me: red, green, blue, red, green, blue, red,",
    "# How to plant an apple tree\n\n1.",
)
SAMPLINGS: dict[str, dict[str, float]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_p": 0.95},
}
LOSSLESS: dict[str, dict[str, Any]] = {
    "plain": {"method": "plain"},
    "auto": {"method": "auto"},
    "lookup": {"method": "lookup"},
    "draft": {"method": "draft"},
    "ead, verified": {"switch": {"policy": "ead", "threshold": 1.0, "mode": "verify"}},
}
"""Ways of decoding that give the text of the first one."""

SWITCHED: dict[str, dict[str, Any]] = {
    "ead": {"switch": {"policy": "ead", "threshold": 1.5, "window": 3, "dwell": 2}},
    "margin": {"switch": {"policy": "margin", "threshold": 0.4, "window": 3, "dwell": 2}},
    "bild": {"switch": {"policy": "bild", "fallback": 0.5, "mode": "repair"}},
}


@dataclass(frozen=True)
class Case:
    """A way of decoding, greedy or sampled. options: of the request."""

    way: str
    sampling: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Where its outputs are in the file: lossless ways share theirs."""
        return f"{'plain' if self.way in LOSSLESS else self.way}, {self.sampling}"

    def __str__(self) -> str:
        return f"{self.way}, {self.sampling}"

    def outputs(self, engine: edgedec.Engine) -> list[list[str | list[int]]]:
        """Returns, for each prompt, the token ids and what `whose` says of them."""
        chats = [[{"role": "user", "content": text}] for text in CHAT]
        return [self._output(engine, prompt) for prompt in (*chats, *RAW)]

    def _output(self, engine: edgedec.Engine, prompt: Any) -> list[str | list[int]]:
        fields = {"max_new_tokens": N_TOKENS, "seed": SEED, **self.options}
        request = edgedec.GenerationConfig.from_dict(
            {**fields, "sampling": SAMPLINGS[self.sampling]}
        )
        result = engine.generate(prompt, request)
        return [list(result.token_ids), "" if self.way in LOSSLESS else whose(result)]


def whose(result: edgedec.GenerationResult) -> str:
    """Returns the first letter of each token's origin: draft, target.

    Beside itself a model writes the same text whoever writes it; this is what policies decide.
    """
    return "".join(origin[0] for origin in result.origins)


def cases() -> Iterator[Case]:
    """Yields every way of decoding, greedy and sampled."""
    for sampling in SAMPLINGS:
        for way, options in {**LOSSLESS, **SWITCHED}.items():
            yield Case(way, sampling, options)


def open_engine(bundle: str | Path) -> edgedec.Engine:
    """Returns an engine over SmolLM2 with itself as the draft model."""
    return edgedec.load(bundle, EngineOptions(threads=1, context=CONTEXT, draft=bundle))


def main() -> None:
    """Prints the outputs of every case, lossless ones once."""
    with open_engine(sys.argv[1]) as engine:
        found = {
            case.key: case.outputs(engine) for case in cases() if case.way in ("plain", *SWITCHED)
        }
    lines = ",\n".join(
        f"  {json.dumps(key)}: [\n    " + ",\n    ".join(map(json.dumps, outputs)) + "\n  ]"
        for key, outputs in found.items()
    )
    print(f"{{\n{lines}\n}}")


if __name__ == "__main__":
    main()
