"""Prints what leaving FFNs out costs where they change little (FFN-SkipLLM), on a text.

python ffn_skip.py MODEL_DIRECTORY TEXT

The first four layers, the last two, and the first 32 tokens of a window are never left out.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

import torch
import transformers

FIRST, LAST, WARM, WINDOW, N_WINDOWS = 4, 2, 32, 256, 4


def main() -> None:
    """Prints FFNs left out, weights not read, KL divergence and equal first choices."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
    layers = model.eval().model.layers
    text = Path(sys.argv[2]).read_text()
    ids = tokenizer(text, return_tensors="pt").input_ids[0][: WINDOW * N_WINDOWS]
    middle = range(FIRST, len(layers) - LAST)
    least, n_skipped, n_all = 2.0, 0, 0
    alike: list[list[float]] = [[] for _ in layers]
    residuals: dict[int, torch.Tensor] = {}

    def skipping(i: int, compute):
        def forward(x: torch.Tensor) -> torch.Tensor:
            nonlocal n_skipped, n_all
            out = compute(x)
            cosine = torch.nn.functional.cosine_similarity(residuals[i], residuals[i] + out, dim=-1)
            alike[i].append(cosine.mean().item())
            skipped = cosine > least if i in middle else torch.zeros_like(cosine, dtype=torch.bool)
            skipped[:, :WARM] = False
            n_skipped += int(skipped.sum())
            n_all += skipped.numel()
            return torch.where(skipped[..., None], torch.zeros_like(out), out)

        return forward

    for i, layer in enumerate(layers):
        layer.mlp.forward = skipping(i, layer.mlp.forward)
        layer.post_attention_layernorm.register_forward_pre_hook(
            lambda _, args, i=i: residuals.update({i: args[0]})
        )

    @torch.no_grad()
    def log_probs() -> torch.Tensor:
        windows = ids.reshape(N_WINDOWS, 1, WINDOW)
        rows = [model(window).logits[0, WARM:-1] for window in windows]
        return torch.log_softmax(torch.stack(rows), -1)

    whole = log_probs()
    means = torch.tensor([fmean(alike[i]) for i in middle])
    n_ffn = sum(p.numel() for layer in layers for p in layer.mlp.parameters())
    n_weights = sum(p.numel() for p in model.parameters())
    for quantile in (0.95, 0.9, 0.8, 0.7, 0.5):
        least, n_skipped, n_all = float(means.quantile(quantile)), 0, 0
        part = log_probs()
        share = n_skipped / n_all
        kl = (whole.exp() * (whole - part)).sum(-1).mean().item()
        same = (whole.argmax(-1) == part.argmax(-1)).float().mean().item()
        print(
            f"cosine above {least:.4f}: {share:.1%} of the FFNs, "
            f"{share * n_ffn / n_weights:.1%} of the weights, KL {kl:.3f}, "
            f"the same first choice {same:.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
