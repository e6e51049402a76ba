"""Shows text as it is generated, stops it after a sentence, and says what it took.

python examples/stream.py smollm2.edgedec
"""

from __future__ import annotations

import sys

import edgedec


def main(bundle: str) -> None:
    """Prints the first sentence of an answer, and counts."""
    messages = [{"role": "user", "content": "Why is the sky blue?"}]
    config = edgedec.GenerationConfig(max_new_tokens=64)
    with edgedec.load(bundle) as engine:
        stream = engine.stream(messages, config)
        for piece in stream:
            print(piece, end="", flush=True)
            if "." in piece:
                stream.stop()  # keeps the turn; cancel() would drop it
        result = stream.result
    print(f"\n{result.n_new_tokens} tokens, ended by {result.finish_reason}")
    print(f"{result.n_new_tokens / (result.stats.n_passes + 1):.2f} tokens per pass")


if __name__ == "__main__":
    main(sys.argv[1])
