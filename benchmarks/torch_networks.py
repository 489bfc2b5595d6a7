"""The networks of `benchmarks.networks` in PyTorch, as a researcher writes them."""

from __future__ import annotations

import torch
from torch import nn


def convolutions(depth: int, side: int) -> nn.Module:
    """Return the built-in CNN: 5 x 5 convolutions with 16 and 32 channels."""
    return nn.Sequential(
        *(nn.Conv2d(depth, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * (side // 4) ** 2, 10)),
    )


def lenet(depth: int, side: int) -> nn.Module:
    """Return the CNN of the NIID benchmark."""
    return nn.Sequential(
        *(nn.Conv2d(depth, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(16 * ((side - 12) // 4) ** 2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def mcmahan(depth: int, side: int) -> nn.Module:
    """Return the CNN of McMahan et al. (2017)."""
    return nn.Sequential(
        *(nn.Conv2d(depth, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64 * (side // 4) ** 2, 512), nn.ReLU(), nn.Linear(512, 10)),
    )


class Characters(nn.Module):
    """The built-in character LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 8)
        self.lstm = nn.LSTM(8, 100, num_layers=2, batch_first=True)
        self.output = nn.Linear(100, 80)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.lstm(self.embedding(x))
        scores: torch.Tensor = self.output(outputs[:, -1])
        return scores


class Sentiment(nn.Module):
    """The built-in sentiment LSTM, over fixed word vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("vectors", torch.randn(80, 300))
        self.lstm = nn.LSTM(300, 256, num_layers=2, batch_first=True)
        self.output = nn.Linear(256, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.lstm(nn.functional.embedding(x, self.vectors))
        scores: torch.Tensor = self.output(outputs[:, -1])
        return scores


class Residual(nn.Module):
    """Two 3 x 3 convolutions with group normalisation, and what goes past them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.added = stride, outputs - inputs
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(8, outputs), nn.GroupNorm(8, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.norm2(self.second(self.norm1(self.first(x)).relu()))
        past = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        out: torch.Tensor = (past + inner).relu()
        return out


def resnet(blocks: int) -> nn.Module:
    """Return ResNet-8 (one block per stage) or ResNet-20 (three) with group normalisation."""
    widths = [(16, 16, 1)] * blocks + [(16, 32, 2)] + [(32, 32, 1)] * (blocks - 1)
    widths += [(32, 64, 2)] + [(64, 64, 1)] * (blocks - 1)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(8, 16), nn.ReLU()),
        *(Residual(*each) for each in widths),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )


class Transformer(nn.Module):
    """The built-in character transformer: two layers, 128 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(80, 128), nn.Parameter(torch.zeros(80, 128))
        layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(128), enable_nested_tensor=False)
        self.output = nn.Linear(128, 80)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(80))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.layers(self.characters(x) + self.positions, self.mask, is_causal=True)
        scores: torch.Tensor = self.output(inner[:, -1])
        return scores
