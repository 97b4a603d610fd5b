"""What every training stage shares: a time budget, a learning rate that follows it, averaged weights, a log."""

from __future__ import annotations

import copy
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn


class Budget:
    """The wall-clock seconds a stage may use; training is measured in time, not in steps."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.start = seconds, time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    @property
    def part(self) -> float:
        """How much of the budget is used, 0 to 1."""
        return min(self.elapsed / self.seconds, 1.0)

    @property
    def is_spent(self) -> bool:
        return self.elapsed >= self.seconds


def learning_rate(part: float, peak: float) -> float:
    """Up over the first 4 % of the time, then a cosine down to a fiftieth."""
    if part < 0.04:
        return peak * max(part / 0.04, 0.02)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (part - 0.04) / 0.96)))


def optimizer(model: nn.Module, peak: float, decay: float = 0.01) -> torch.optim.AdamW:
    """AdamW over what of ``model`` is trained; no weight decay on vectors."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.98), fused=parameters[0].is_cuda)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate


class Average:
    """A running mean of a model's weights, over about the last ``horizon`` steps."""

    def __init__(self, model: nn.Module, horizon: int = 1000) -> None:
        self.model, self.horizon, self.steps = model, horizon, 0
        self.values = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self) -> None:
        self.steps += 1
        weight = max(1 / self.horizon, 1 / (1 + self.steps))
        torch._foreach_lerp_(self.values, [p.detach() for p in self.model.parameters()], weight)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's weights and the averaged ones; call twice to come back."""
        for parameter, value in zip(self.model.parameters(), self.values, strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(value)
            value.copy_(kept)


class Half:
    """A bf16 copy of a model that does the arithmetic, while the model keeps float32 weights for the optimiser."""

    def __init__(self, master: nn.Module) -> None:
        self.master, self.model = master, copy.deepcopy(master).bfloat16()

    def give_gradients(self) -> None:
        for full, half in zip(self.master.parameters(), self.model.parameters(), strict=True):
            full.grad = None if half.grad is None else half.grad.float()
            half.grad = None

    @torch.no_grad()
    def take_weights(self) -> None:
        torch._foreach_copy_(list(self.model.parameters()), list(self.master.parameters()))


class Log:
    """Losses as one JSON object a line, in a file and on the terminal."""

    def __init__(self, folder: Path, stage: str, every_seconds: float = 5.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.stage, self.every_seconds = folder / f"{stage}.jsonl", stage, every_seconds
        self.start, self.last = time.monotonic(), -1e9

    def is_due(self) -> bool:
        """Whether it is time for a line; reading a loss from the device waits for it, so this comes first."""
        return time.monotonic() - self.last >= self.every_seconds

    def write(self, **values: Any) -> None:
        self.last = time.monotonic()
        plain = {k: round(float(v.detach()), 6) if isinstance(v, torch.Tensor) else v for k, v in values.items()}
        line = json.dumps({"stage": self.stage, "seconds": round(self.last - self.start, 1), **plain})
        with self.file.open("a") as out:
            out.write(line + "\n")
        print(line, flush=True)


def device_name(asked: str) -> str:
    """``cuda`` where there is one, if ``asked`` is ``auto``."""
    return asked if asked != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")


def prepare(device: str) -> None:
    """Fast float32 matrix products and convolution search on a GPU; one thread on a CPU."""
    torch._dynamo.config.suppress_errors = device == "cuda"  # train slower rather than not at all
    torch.set_float32_matmul_precision("high")
    if device == "cpu":
        torch.set_num_threads(1)


def compiled(function: Any, device: str) -> Any:
    """``function`` compiled for fixed shapes on a GPU, as it is on a CPU; of a transformer one block for all."""
    if device == "cuda" and hasattr(function, "compile_repeated_blocks"):
        function.compile_repeated_blocks(dynamic=False)
        return function
    return torch.compile(function, dynamic=False) if device == "cuda" else function


def autocast(device: str) -> torch.autocast:
    return torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")
