"""Schemas with numbers at 2^53, 2^63 and beyond; chance writes JSON that follows them.

    python tools/fuzz/schema_numbers.py --tries 10000 --seconds 500

The library jsonschema judges each text in whole numbers and decimals of any length, never in
floats. A schema that is refused has to name a keyword; few may be.
"""

from __future__ import annotations

import decimal
import json
import random
import re
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import jsonschema
import numpy as np
from pieces import run_tries

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.sampling.grammar import GrammarMask, Grammars

STOP = 256
N_IDS = 257 + 100
PIECE = 50
MAX_TOKENS = 1500
MAX_REFUSED = PIECE // 5
"""Of a piece: schemas that no value fits, and few others."""
_DONE = (b'"', b"}", b"]", b",", b":")

_NAMES_KEYWORD = re.compile(
    r"json_schema is refused: (enum|type|allOf|anyOf|required|minItems|multipleOf|"
    r"(m|exclusiveM)(in|ax)imum)\b[^\n]*; change the schema$"
)

decimal.getcontext().prec = 20_000


class ByteCodec:
    """A tokenizer of bytes, and of all pairs of digits. Token 256 ends a text."""

    def __init__(self) -> None:
        pairs = {257 + i: b"%02d" % i for i in range(100)}
        self._spellings: dict[int, bytes | str] = {i: bytes((i,)) for i in range(256)}
        self._spellings.update(pairs)
        self._spellings[STOP] = "<stop>"

    def encode(self, text: str) -> list[int]:
        """Returns the bytes of ``text``."""
        return list(text.encode())

    def spellings(self) -> dict[int, bytes | str]:
        """Returns what each token stands for."""
        return self._spellings

    def spelt(self, tokens: list[int]) -> str:
        """Returns the text of tokens."""
        return b"".join(bytes(self._spellings[t]) for t in tokens).decode()  # type: ignore[arg-type]


def edge(rng: random.Random) -> int:
    """Returns an integer about where floats, or registers, end."""
    power = rng.choice([53, 53, 63, 63, 63, 64, 65, 70, 100, 127, 200])
    return rng.choice([-1, 1]) * (2**power + rng.choice([-2, -1, 0, 1, 1, 2, 3, 999, -12345]))


def number(rng: random.Random) -> Any:
    """Returns a number of a schema: mostly long, sometimes a fraction or a small one."""
    kind = rng.random()
    if kind < 0.75:
        return edge(rng)
    if kind < 0.9:
        return rng.randint(-30, 30)
    return rng.choice([0.5, 1e300, -1e30, 3.4028234663852886e38, 1e-7, 2.5e17, 1e16])


def bounds(rng: random.Random) -> dict[str, Any]:
    """Returns bounds that hold some number."""
    low, made = number(rng), dict[str, Any]()
    high = low + rng.choice([1, 2, 7, 10**5, abs(edge(rng))]) if rng.random() < 0.7 else number(rng)
    low, high = sorted((low, high), key=Decimal)
    if rng.random() < 0.7:
        made[rng.choice(["minimum", "exclusiveMinimum"])] = low
    if rng.random() < 0.7 or not made:
        made[rng.choice(["maximum", "maximum", "exclusiveMaximum"])] = high
    return made


def leaf(rng: random.Random) -> Any:
    """Returns a schema of numbers, or of a few values with long numbers in them."""
    kind = rng.randrange(8)
    if kind == 0:
        return {"const": value(rng, 2)}
    if kind == 1:
        return {"enum": [value(rng, 1) for _ in range(rng.randint(1, 4))]}
    if kind == 2:
        step = abs(edge(rng)) if rng.random() < 0.5 else rng.choice([1, 2, 3, 7, 100, 2**31])
        return {
            "type": "integer",
            "multipleOf": step,
            **(bounds(rng) if rng.random() < 0.3 else {}),
        }
    if kind == 3:
        return {
            "type": rng.choice(["number", ["number", "null"], ["integer", "string"]]),
            **bounds(rng),
        }
    if kind == 4:
        return bounds(rng)
    if kind == 5:
        return {"allOf": [{"type": "integer"}, bounds(rng), {"maximum": abs(edge(rng))}]}
    return {"type": "integer", **bounds(rng)}


def value(rng: random.Random, depth: int) -> Any:
    """Returns a value with a long number in it, mostly."""
    kind = rng.randrange(8) if depth else rng.randrange(5)
    if kind < 4:
        return edge(rng)
    if kind == 4:
        return rng.choice(["é/", None, True, 1.5, 7, 'a"b\\'])
    if kind < 7:
        return [value(rng, depth - 1) for _ in range(rng.randint(0, 2))]
    return {name: value(rng, depth - 1) for name in rng.sample(["a", "b c", "é", '"'], 2)}


def schema(rng: random.Random, depth: int = 3) -> Any:
    """Returns a schema with long numbers."""
    kind = rng.randrange(10) if depth else 0
    if kind < 4:
        return leaf(rng)
    inner: Callable[[], Any] = lambda: schema(rng, depth - 1)  # noqa: E731
    if kind < 6:
        names = rng.sample(["a", "b", "id", "é", 'q"', "minimum"], rng.randint(1, 4))
        made = {"type": "object", "properties": {name: inner() for name in names}}
        made["required"] = [name for name in names if rng.random() < 0.5]
        if rng.random() < 0.8:
            made["additionalProperties"] = rng.choice([False, False, inner()])
        return made
    if kind < 8:
        made = {"type": "array", "items": inner(), "maxItems": rng.randint(1, 4)}
        if rng.random() < 0.3:
            made["prefixItems"] = [inner() for _ in range(rng.randint(1, 2))]
        if rng.random() < 0.3:
            made["minItems"] = 1
        return made
    if kind == 8:
        return {"anyOf": [inner(), rng.choice([inner(), {"type": "string", "maxLength": 5}])]}
    return {"$ref": "#/$defs/n"}


def drawn(seed: int) -> Any:
    """Returns schema number ``seed``."""
    rng = random.Random(seed)
    made = schema(rng)
    return {**made, "$defs": {"n": leaf(rng)}} if "#/$defs/n" in json.dumps(made) else made


def written(mask: GrammarMask, codec: ByteCodec, rng: random.Random) -> str | None:
    """Returns what chance writes, which likes to end; None if it does not end."""
    tokens: list[int] = []
    while len(tokens) < MAX_TOKENS:
        row = mask.row_after(())
        if mask.is_finished or row is None:
            return codec.spelt(tokens)
        allowed = [int(token) for token in np.flatnonzero(row)]
        ends = [token for token in allowed if token == STOP or bytes((token % 256,)) in _DONE]
        token = rng.choice(ends if ends and rng.random() < 0.4 else allowed)
        mask.accept(token)
        if token == STOP:
            return codec.spelt(tokens)
        tokens.append(token)
    return None


def read_number(text: str) -> Any:
    """Returns a number that is no integer; infinity if it is beyond what decimals hold."""
    try:
        return Decimal(text)
    except decimal.InvalidOperation:
        return float(text)


def judge(made: Any, text: str) -> None:
    """Raises an error unless ``text`` follows the schema, in exact numbers."""
    exact = json.loads(json.dumps(made), parse_float=Decimal)
    instance = json.loads(text, parse_float=read_number)
    jsonschema.Draft202012Validator(exact).validate(instance)


def check(seeds: range, n_texts: int = 2) -> tuple[int, int]:
    """Writes texts for schemas, and judges them.

    Returns:
        How many schemas are refused, and how many texts were judged.
    """
    codec = ByteCodec()
    grammars: Any = Grammars(codec, N_IDS)  # type: ignore[arg-type]
    n_refused = n_judged = 0
    for seed in seeds:
        made = drawn(seed)
        try:
            mask = grammars.mask(GenerationConfig(json_schema=made), frozenset({STOP}))
        except ConfigError as error:
            n_refused += 1
            if not _NAMES_KEYWORD.match(str(error)):
                raise
            continue
        for i in range(n_texts):
            mask.begin(())
            if (text := written(mask, codec, random.Random(f"{seed} {i}"))) is not None:
                n_judged += 1
                try:
                    judge(made, text)
                except Exception:
                    print(f"schema {seed}: {json.dumps(made)}\nwrites {text}", file=sys.stderr)
                    raise
    return n_refused, n_judged


def piece(n_before: int) -> int:
    """Tries some more schemas."""
    n_refused, n_judged = check(range(n_before, n_before + PIECE))
    assert n_judged >= PIECE
    assert n_refused <= MAX_REFUSED, n_refused
    return PIECE


if __name__ == "__main__":
    sys.exit(run_tries(__doc__ or "", "schema_numbers", 10_000, piece))
