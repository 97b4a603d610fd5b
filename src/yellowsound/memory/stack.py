"""BlockStack: one module in the place of a whole block list; and what a denoising loop calls on a streamed model.

The transformer's own forward hands a BlockStack the arguments of a block, and the stack runs all blocks. On a model
that does not stream, every function here does what diffusers does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from yellowsound.events import CancelToken, OnEvent
from yellowsound.memory.driver import Driver
from yellowsound.memory.hoist import TOWERS, Branch
from yellowsound.memory.leaving import close_streamed as close_streamed

_ATTRIBUTE = "yellowsound_driver"


class BlockStack(nn.Module):
    """Runs all blocks of a list; holds neither weights nor blocks."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self._run = run

    def forward(self, *args: Any) -> Any:
        return self._run(*args)


def install(transformer: nn.Module, driver: Driver) -> None:
    """Put a BlockStack in the place of each block list of ``transformer``."""
    transformer.visual_transformer_blocks = nn.ModuleList([BlockStack(driver.run_blocks)])
    for tower in TOWERS:
        stack = BlockStack(lambda *args, tower=tower: driver.run_text(tower, *args))
        setattr(transformer, f"{tower}_text_transformer_blocks", nn.ModuleList([stack]))
    transformer.register_forward_pre_hook(lambda _module, _args, inputs: driver.note_call(inputs), with_kwargs=True)
    transformer.__dict__[_ATTRIBUTE] = driver


def driver_of(transformer: Any) -> Driver | None:
    """What streams ``transformer``; None if it is resident."""
    found = getattr(transformer, "__dict__", {}).get(_ATTRIBUTE)
    return found if isinstance(found, Driver) else None


def predict(transformer: Any, branches: Sequence[dict[str, Any]]) -> list[Any]:
    """One prediction per branch, as ``transformer(**inputs, return_dict=False)`` gives; one weight pass for all.

    Bit-identical to calling the stock transformer once for each branch.
    """
    driver = driver_of(transformer)
    if driver is None or len(branches) == 1:
        return [transformer(**inputs, return_dict=False) for inputs in branches]
    return driver.predict(transformer, branches)


def prepare_clip(transformer: Any, timesteps: Tensor, branches: Sequence[tuple[Tensor, Tensor, Tensor | None]]) -> None:
    """Tell a streamed model what the clip's calls will be, so that it hoists; call before the loop.

    timesteps: the scheduler's, on the model's device; each call's timestep should be a view of it. branches: for each
    guidance branch (tokens, pooled, mask), the very tensors that the calls will pass. A call with anything else is
    still right, only slower.
    """
    driver = driver_of(transformer)
    if driver is not None:
        driver.prepare(transformer, timesteps, [Branch(*branch) for branch in branches])


def end_clip(transformer: Any, *, forget: bool = False) -> None:
    """The loop is over. Results are kept for a next clip with the same prompt and schedule unless ``forget``."""
    driver = driver_of(transformer)
    if driver is not None:
        driver.seams.cancel, driver.seams.on_event = CancelToken(), None
        if forget:
            driver.forget()


def prefill(transformer: Any) -> None:
    """Start reading ahead for the next clip while something else is computed; nothing to do for a resident model."""
    driver = driver_of(transformer)
    if driver is not None:
        driver.prefill()


def set_cancel(transformer: Any, cancel: CancelToken) -> None:
    """Look at ``cancel`` before each block, until ``end_clip``."""
    driver = driver_of(transformer)
    if driver is not None:
        driver.seams.cancel = cancel


def set_listener(transformer: Any, on_event: OnEvent) -> None:
    """Tell ``on_event`` when homes are given up between steps, until ``end_clip``."""
    driver = driver_of(transformer)
    if driver is not None:
        driver.seams.on_event = on_event
