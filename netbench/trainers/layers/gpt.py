"""A GPT in plain PyTorch: embeddings, blocks, head, each initialised from its own seed.

A layer's weights depend only on the seed and its index, so the model is the same however it is cut.
Source of the architecture: GPT-2 (Radford et al. 2019): pre-norm, GELU, learned positions; the head
has its own weights.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from netbench.scenario.model import Workload
from netbench.workload.tokens import vocabulary_size

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
"""Data types in which parameters, activations and gradients are stored and sent."""

INITIAL_STD = 0.02
"""Standard deviation of weight matrices; at the end of a residual branch it is divided by
sqrt(2 x layers). Source: GPT-2."""


class Embedding(nn.Module):
    """Tokens and positions: (b, s) int64 -> (b, s, h)."""

    def __init__(self, vocabulary: int, sequence: int, hidden: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(sequence, hidden)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        embedded: torch.Tensor = self.tokens(tokens) + self.positions(places)
        return embedded


class GPTBlock(nn.Module):
    """Self-attention and feed-forward of width 4h: (b, s, h) -> (b, s, h).

    It has 12 h^2 + 13 h parameters. heads: those of this rank, if tensor-parallel ranks share them.
    """

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(hidden)
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.projection = nn.Linear(hidden, hidden)
        self.feed_norm = nn.LayerNorm(hidden)
        self.feed_in = nn.Linear(hidden, 4 * hidden)
        self.feed_out = nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.attention_norm(x)
        parts = (self.query(normed), self.key(normed), self.value(normed))
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).flatten(2))
        fed: torch.Tensor = self.feed_out(F.gelu(self.feed_in(self.feed_norm(x))))
        return x + fed


class Head(nn.Module):
    """Scores of the next token: (b, s, h) -> (b, s, vocabulary)."""

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.scores = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.scores(self.norm(x))
        return scores


def build_layer(workload: Workload, index: int, seed: int) -> nn.Module:
    """Build layer `index` of the model, on the CPU in its dtype.

    0 is the embedding, 1 .. layers are the blocks, layers + 1 is the head.
    """
    size = vocabulary_size(workload)
    layer: nn.Module
    if index == 0:
        layer = Embedding(size, workload.sequence, workload.hidden)
    elif index <= workload.layers:
        layer = GPTBlock(workload.hidden, workload.heads)
    else:
        layer = Head(size, workload.hidden)
    _initialise(layer, workload.layers, torch.Generator().manual_seed(seed * 100_003 + index))
    return layer.to(DTYPES[workload.dtype])


def _initialise(layer: nn.Module, num_layers: int, random: torch.Generator) -> None:
    """Draw weights in fp32, so that other dtypes have the same weights, rounded."""
    for name, parameter in layer.named_parameters():
        if "norm" in name:
            nn.init.constant_(parameter, float(name.endswith("weight")))
        elif parameter.dim() == 1:
            nn.init.zeros_(parameter)
        else:
            ends = name.startswith(("projection", "feed_out"))
            std = INITIAL_STD / math.sqrt(2 * num_layers) if ends else INITIAL_STD
            nn.init.normal_(parameter, std=std, generator=random)
