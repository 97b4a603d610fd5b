"""What every training stage shares: a time budget, a learning rate that follows it, averaged weights, a log."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import parts
import torch
from torch import Tensor, nn


class Budget:
    """The wall-clock seconds a stage may use; training is measured in time, not in steps."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.start, self.steps = seconds, time.monotonic(), 0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    @property
    def part(self) -> float:
        """How much of the budget is used, 0 to 1."""
        return min(self.elapsed / self.seconds, 1.0)

    def goes_on(self) -> bool:
        """Whether to take another step. A stage takes one at least, however slow the machine is."""
        self.steps += 1
        return self.steps == 1 or self.elapsed < self.seconds


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
    """Give each group ``rate`` times its own factor, where it has one."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group.get("factor", 1.0)


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


class Keeper:
    """Writes averaged weights every ``every_seconds`` of a budget, so that a stage that is cut off was not in vain."""

    def __init__(self, budget: Budget, every_seconds: float = 50.0) -> None:
        self.budget, self.every_seconds, self.last = budget, every_seconds, 0.0

    def keep(self, model: nn.Module, average: Average, folder: Path) -> None:
        if self.budget.elapsed - self.last < self.every_seconds:
            return
        self.last = self.budget.elapsed
        average.swap()
        parts.save(model, folder)
        average.swap()


class Half:
    """A copy of a model, in bf16 on a GPU, that does the arithmetic; the model keeps float32 for the optimiser.

    Buffers (rotary tables) stay as they are: rounded ones would turn by other angles.
    """

    def __init__(self, master: nn.Module) -> None:
        self.model: Any = copy.deepcopy(master)
        self.weights: list[Tensor] = list(master.parameters())
        self.halves: list[Any] = list(self.model.parameters())
        self.dtype = torch.bfloat16 if self.weights[0].is_cuda else torch.float32
        for half in self.halves:
            half.data = half.data.to(self.dtype)
        self.gradients = [torch.zeros_like(w) for w in self.weights]

    @torch.no_grad()
    def give_gradients(self, gradients: list[Tensor | None]) -> None:
        """Set the model's gradients to ``gradients``, those of the copy in order."""
        pairs = [(own, given) for own, given in zip(self.gradients, gradients, strict=True) if given is not None]
        torch._foreach_copy_([own for own, _ in pairs], [given for _, given in pairs])
        for weight, own, given in zip(self.weights, self.gradients, gradients, strict=True):
            weight.grad = None if given is None else own

    @torch.no_grad()
    def take_weights(self) -> None:
        torch._foreach_copy_(self.halves, self.weights)


class Step:
    """Losses and gradients of one batch, replayed as a CUDA graph: small networks wait for Python, not for the GPU.

    losses: from tensors to a tuple of scalar losses, whose sum is minimised. The first call's shapes are the shapes.
    """

    def __init__(self, losses: Callable[..., tuple[Tensor, ...]], parameters: list[nn.Parameter], inputs: Any) -> None:
        self.losses, self.parameters = losses, parameters
        self.graph: torch.cuda.CUDAGraph | None = None
        if inputs[0].is_cuda:
            try:
                self._capture(inputs)
            except RuntimeError as error:  # slower, but it trains
                self.graph = None
                torch.cuda.synchronize()
                print(f"no CUDA graph, steps run one kernel after another: {error}", flush=True)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The losses; ``gradients`` then holds the gradients, in the order of the parameters."""
        if self.graph is None:
            return self._run(inputs)
        torch._foreach_copy_(self.held, list(inputs))
        self.graph.replay()
        return self.results

    def _run(self, inputs: Any) -> tuple[Tensor, ...]:
        for parameter in self.parameters:
            parameter.grad = None
        results = self.losses(*inputs)
        torch.stack(list(results)).sum().backward()  # type: ignore[no-untyped-call]
        self.gradients = [p.grad for p in self.parameters]
        return tuple(r.detach() for r in results)

    def _capture(self, inputs: Any) -> None:
        self.held = [x.clone() for x in inputs]
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(3):
                self._run(self.held)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.results = self._run(self.held)
        self.graph = graph


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


def clip(model: nn.Module) -> None:
    """Scale the gradients down to a norm of 1 at most."""
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0, foreach=True)


def autocast(device: str) -> torch.autocast:
    return torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")
