"""What models inside a model are worth, of a toy that learns bytes of texts for a minute.

python tools/nested_toy.py TEXT... --steps 300

Five ways to have a small model in a large one, each trained as long as the plain model was:
SortedNet trains some depths, MatFormer some widths of the MLPs, a step each. The plain model, as it
is, gets routers that leave layers out by what stands before (FiRST, without its LoRA), or a second
stream of states with adapters, ahead of the first one, through the first layers (M2R2). The table
says how good the whole model still is, how good the small one is, in bits for each byte, and how
often both choose the same byte. Nothing here says what a real model would do.

Source: SortedNet (arXiv 2309.00255), MatFormer (arXiv 2310.07707), FiRST (arXiv 2410.12513), M2R2
(arXiv 2502.02040).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

_N_BYTES, _SIZE, _HEADS, _INNER, _DEPTH, _SMALL = 256, 64, 4, 256, 6, 3
_CONTEXT, _BATCH, _RANK = 64, 16, 16
_WIDTHS, _DEPTHS = (1 / 8, 1 / 4, 1 / 2, 1.0), (_SMALL, _DEPTH)
_PENALTY = 0.3
"""What a layer that runs counts in the loss of routers, in nats for each byte."""


class Layer(nn.Module):
    """A decoder layer whose keys and values may be those of other rows than its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp_norm = nn.RMSNorm(_SIZE), nn.RMSNorm(_SIZE)
        self.q, self.kv = nn.Linear(_SIZE, _SIZE), nn.Linear(_SIZE, 2 * _SIZE)
        self.out, self.up = nn.Linear(_SIZE, _SIZE), nn.Linear(_SIZE, _INNER)
        self.down = nn.Linear(_INNER, _SIZE)

    def forward(self, x: Tensor, seen: Tensor | None = None, width: float = 1.0) -> Tensor:
        """Returns the rows behind the layer. width: share of the MLP's units that run."""
        seen = x if seen is None else seen
        k, v = self.kv(self.norm(seen)).chunk(2, -1)
        q, k, v = (
            part.unflatten(-1, (_HEADS, -1)).transpose(1, 2)
            for part in (self.q(self.norm(x)), k, v)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        n = int(width * _INNER)
        inner = functional.gelu(
            functional.linear(self.mlp_norm(x), self.up.weight[:n], self.up.bias[:n])
        )
        return x + functional.linear(inner, self.down.weight[:, :n], self.down.bias)


class Toy(nn.Module):
    """A decoder over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(_N_BYTES, _SIZE), nn.Embedding(_CONTEXT, _SIZE)
        self.layers = nn.ModuleList(Layer() for _ in range(_DEPTH))
        self.norm, self.head = nn.RMSNorm(_SIZE), nn.Linear(_SIZE, _N_BYTES)

    def first(self, text: Tensor) -> Tensor:
        """Returns the rows before all layers."""
        return self.embed(text) + self.places.weight[: text.shape[1]]

    def forward(self, text: Tensor, depth: int = _DEPTH, width: float = 1.0) -> Tensor:
        """Returns the logits behind ``depth`` layers."""
        x = self.first(text)
        for layer in self.layers[:depth]:
            x = layer(x, width=width)
        return self.head(self.norm(x))


class Routed(nn.Module):
    """FiRST: for each text and layer, whether it runs behind the first half of the text."""

    def __init__(self, toy: Toy) -> None:
        super().__init__()
        self.toy = [toy]  # not trained
        self.routers = nn.ModuleList(nn.Linear(_SIZE, 1) for _ in toy.layers)
        for router in self.routers:
            nn.init.constant_(router.bias, 2.0)

    def forward(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the logits, and the share of each layer that ran [B, L]."""
        (toy,) = self.toy
        x, shares = toy.first(text), []
        behind = (torch.arange(text.shape[1]) >= text.shape[1] // 2)[:, None]
        for layer, router in zip(toy.layers, self.routers, strict=True):
            share = router(x[:, : text.shape[1] // 2]).mean(1).sigmoid()
            share = share if self.training else (share > 0.5).float()
            shares.append(share)
            x = x + (layer(x) - x) * torch.where(behind, share[:, None], 1.0)
        return toy.head(toy.norm(x)), torch.cat(shares, -1)


class Ahead(nn.Module):
    """M2R2: a second stream through the first layers, with the first one's keys and values."""

    def __init__(self, toy: Toy) -> None:
        super().__init__()
        self.toy = [toy]  # not trained
        self.low = nn.ModuleList(nn.Linear(_SIZE, _RANK, bias=False) for _ in range(_SMALL))
        self.high = nn.ModuleList(nn.Linear(_RANK, _SIZE, bias=False) for _ in range(_SMALL))
        for matrix in self.high:
            nn.init.zeros_(matrix.weight)

    def forward(self, text: Tensor) -> Tensor:
        """Returns the logits of the second stream."""
        (toy,) = self.toy
        fast = slow = toy.first(text)
        for layer, low, high in zip(toy.layers, self.low, self.high, strict=False):
            fast = layer(fast, slow) + high(functional.gelu(low(fast)))
            slow = layer(slow)
        return toy.head(toy.norm(fast))


def train(
    parts: Iterable[nn.Parameter], loss_of: Callable[[Tensor], Tensor], text: Tensor, steps: int
) -> None:
    """Trains ``parts`` on random pieces of ``text``."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(list(parts), 3e-3)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * 0.5 * (1 + math.cos(math.pi * step / steps))
        starts = torch.randint(len(text) - _CONTEXT - 1, (_BATCH,), generator=generator)
        pieces = torch.stack([text[i : i + _CONTEXT + 1] for i in starts.tolist()])
        optimizer.zero_grad()
        loss_of(pieces).backward()
        optimizer.step()


def cost(logits: Tensor, pieces: Tensor) -> Tensor:
    """Returns the mean cross-entropy of what comes next, in nats."""
    return functional.cross_entropy(logits.flatten(0, 1), pieces[:, 1:].flatten())


def trained_toy(text: Tensor, steps: int, choose: Callable[[int], dict[str, float]]) -> Toy:
    """Returns a toy. Each step trained one part, which ``choose`` names."""
    torch.manual_seed(0)
    toy, at = Toy(), iter(range(steps))
    train(
        toy.parameters(),
        lambda pieces: cost(toy(pieces[:, :-1], **choose(next(at))), pieces),
        text,
        steps,
    )
    return toy


@torch.no_grad()
def row(
    name: str, whole: Tensor, small: Tensor, layers: float, pieces: Tensor, first: int = 0
) -> str:
    """Returns a row of the table, of the bytes from ``first`` on."""
    whole, small, pieces = whole[:, first:], small[:, first:], pieces[:, first:]
    of_whole, of_small = (float(cost(x, pieces)) / math.log(2) for x in (whole, small))
    same = float((whole.argmax(-1) == small.argmax(-1)).float().mean())
    return f"| {name} | {layers:.0%} | {of_whole:.2f} | {of_small:.2f} | {same:.0%} |"


def main() -> None:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path, nargs="+", metavar="text")
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    content = b"".join(path.read_bytes() for path in arguments.texts)
    text, steps = torch.tensor(list(content)), arguments.steps
    learned, unseen = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    n = min(64, len(unseen) // (_CONTEXT + 1))
    pieces = unseen[: n * (_CONTEXT + 1)].view(n, -1)
    said, half, quarter = pieces[:, :-1], 1 / 2, _WIDTHS[1]
    mlp = 2 * _SIZE * _INNER / (2 * _SIZE * _INNER + 4 * _SIZE * _SIZE)  # share of the weights
    narrow = 1 - mlp * (1 - quarter)
    plain = trained_toy(learned, steps, lambda _: {})
    nested = trained_toy(learned, steps, lambda i: {"depth": _DEPTHS[i % len(_DEPTHS)]})
    wide = trained_toy(learned, steps, lambda i: {"width": _WIDTHS[i % len(_WIDTHS)]})
    routed, ahead = Routed(plain), Ahead(plain)

    def router_loss(pieces: Tensor) -> Tensor:
        logits, shares = routed(pieces[:, :-1])
        return cost(logits, pieces) + _PENALTY * shares.mean()

    train(routed.parameters(), router_loss, learned, steps)
    train(ahead.parameters(), lambda pieces: cost(ahead(pieces[:, :-1]), pieces), learned, steps)
    print(
        "| | weights of the layers that run | whole | small | same choice |\n|---|---|---|---|---|"
    )
    with torch.no_grad():
        print(row("plain, half of its layers", plain(said), plain(said, _SMALL), half, pieces))
        print(row("SortedNet", nested(said), nested(said, _SMALL), half, pieces))
        print(
            row(
                "plain, a quarter of its MLPs",
                plain(said),
                plain(said, width=quarter),
                narrow,
                pieces,
            )
        )
        print(row("MatFormer", wide(said), wide(said, width=quarter), narrow, pieces))
        logits, shares = routed.eval()(said)
        print(row("FiRST", plain(said), logits, float(shares.mean()), pieces, _CONTEXT // 2))
        print(row("M2R2", plain(said), ahead(said), half, pieces))


if __name__ == "__main__":
    main()
