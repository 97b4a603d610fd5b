"""Driver: takes the blocks of one transformer through the conveyor, for one guidance branch or for several at once.

It knows the order of units, which shell runs what, and the rows that were hoisted; it does not know the denoising
loop. Everything that may happen between two blocks (cancel, what watches them) happens here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from yellowsound.events import Replanned
from yellowsound.memory.conveyor import Conveyor
from yellowsound.memory.course import Call, Course, Modulations, Seams, Visual
from yellowsound.memory.device import Device, Stream
from yellowsound.memory.hoist import TOWERS, Branch, Hoist, Store, time_embeds
from yellowsound.memory.placement import spread
from yellowsound.memory.rows import RowLayout, StepRows
from yellowsound.memory.shells import Shell
from yellowsound.memory.visit import HomeKind


class Driver:
    """The engine room of one streamed transformer. ``close()`` gives everything back."""

    def __init__(
        self,
        conveyor: Conveyor,
        device: Device,
        course: Course,
        block: Shell,
        texts: dict[str, Shell],
        modulations: Modulations,
        store: Store,
        dtype: torch.dtype,
    ) -> None:
        self.seams = Seams()
        self.conveyor = conveyor
        self.course = course
        self.block_shell, self.text_shells = block, texts
        self._device, self._modulations = device, modulations
        self._store, self._dtype = store, dtype
        self._hoist: Hoist | None = None
        self._step_rows = StepRows(device)
        self._place: tuple[int, int] | None = None
        self._mode: Literal["run", "record", "play"] = "run"
        self._recorded: list[Call] = []
        self._results: list[Visual] = []

    def compile(self, **options: Any) -> None:
        """Run every shell through ``torch.compile`` with these options."""
        for shell in (self.block_shell, *self.text_shells.values()):
            shell.compile(**options)

    def note_call(self, inputs: dict[str, Any]) -> None:
        """A transformer call begins with these arguments: find out which step and branch it is."""
        self._place = None
        if self._hoist is not None and "timestep" in inputs:
            self._place = self._hoist.row_of(inputs["timestep"], Branch.of(inputs))
            if self._place is not None and self._store.must_travel and self._hoist.is_complete:
                kept = self._hoist.kept
                self._step_rows.enter(self._place[0], self._hoist.steps, lambda step: [rows[step] for rows in kept])

    def prefill(self) -> None:
        """Start reading ahead while something else is computed: RAM homes first, then what lap one begins with.

        On a GPU the courier carries on by itself; the next ``prepare`` takes over whatever has arrived.
        """
        lap = self._visual_lap(range(len(self.course.blocks)))
        empty = self.conveyor.unfilled([*self._text_lap(), *lap])
        if empty:
            self.conveyor.begin_lap(empty)
        else:
            self.conveyor.begin_lap(self._text_lap(), lap)

    def prepare(self, transformer: Any, timesteps: Tensor, branches: Sequence[Branch]) -> None:
        """Hoist a clip: text blocks now, modulations as they pass in the first step. Keeps results that still hold."""
        self._step_rows.forget()
        known = self._hoist
        if known is not None and known.has_texts and known.is_for(timesteps, branches):
            self._hoist = replace(known, timesteps=timesteps, branches=list(branches))
            return
        self._hoist = None  # its memory is about to be used again
        hoist = self._reserve(transformer, timesteps, branches)
        self._run_texts(transformer, hoist)
        hoist.has_texts = True
        self._hoist = hoist

    def forget(self) -> None:
        """Drop the hoisted results and their memory."""
        self._hoist = None
        self._step_rows.close()
        self._store.close()

    def step_aside(self, kinds: Collection[HomeKind]) -> None:
        """Give slots, results and the homes of these ``kinds`` back, for a stage that needs their memory."""
        self.forget()
        self._unbind()
        self.conveyor.evict([name for name, kind in self.conveyor.homes.items() if kind in kinds])
        self.conveyor.drop_slots()

    def step_back(self) -> None:
        """Have the slots again. Homes given up are read again as lap one passes. Raises ReadError."""
        self.conveyor.take_slots()
        if not self.conveyor.has_slots:  # nothing streams, so there is no lap to fill homes
            self.conveyor.fill(list(self.conveyor.homes))
            self.conveyor.drop_slots()

    def run_text(self, tower: str, *args: Any) -> Tensor:
        """The text blocks of one tower, in the place of their list: hoisted output, or a pass of their own."""
        if self._hoist is not None and self._place is not None:
            branch, device = self._place[1], self._device.torch_device
            kept = self._hoist.layouts[branch].text(self._row(self._hoist, *self._place), tower)
            return self._device.run(lambda: kept.to(device, non_blocking=True), Stream.COMPUTE)
        shell = self.text_shells[tower]
        output: Tensor = args[0]
        with self._lap(self.course.texts[tower]):
            for _ in self.course.texts[tower]:
                output = self._visit(shell, partial(shell.call, output, *args[1:]))
        return output

    def run_blocks(self, *args: Any) -> Visual:
        """The fused blocks, in the place of their list: run now, or record for a run of several branches, or play."""
        if self._mode == "play":
            return self._results.pop(0)
        call = Call(args, self._place)
        if self._mode == "record":
            self._recorded.append(call)
            return args[0], args[1]
        return self._pass([call])[0]

    def predict(self, transformer: Any, branches: Sequence[dict[str, Any]]) -> list[Any]:
        """The transformer's outputs for several branches in one pass of the weights; bit-identical to calls in turn."""
        try:
            self._mode, self._recorded, self._results = "record", [], []
            for inputs in branches:
                transformer(**inputs, return_dict=False)  # the heads run on garbage, which is dropped
            calls, self._recorded = self._recorded, []
            self._mode, self._results = "play", self._pass(calls)
            return [transformer(**inputs, return_dict=False) for inputs in branches]
        finally:
            self._mode, self._recorded, self._results = "run", [], []

    def close(self) -> None:
        """Give back slots, homes, results and threads."""
        self.conveyor.close()
        self.forget()
        self._unbind()

    # inside

    def _unbind(self) -> None:
        for shell in (self.block_shell, self._modulations.shell, *self.text_shells.values()):
            shell.unbind()

    def _text_lap(self) -> list[str]:
        return [name for tower in TOWERS for name in self.course.texts[tower]]

    def _visual_lap(self, unmodulated: Sequence[int]) -> list[str]:
        """Blocks in order, each behind its modulations while those are still to be computed."""
        wanted, lap = set(unmodulated), []
        for index, name in enumerate(self.course.blocks):
            lap += [self.course.modulations[index], name] if index in wanted else [name]
        return lap

    def _pass(self, calls: list[Call]) -> list[Visual]:
        """All calls through all blocks, block by block."""
        self._give_way()
        hoist = self._hoist if all(call.place is not None for call in calls) else None
        known = hoist.modulated if hoist is not None else set()
        todo = [index for index in range(len(self.course.blocks)) if index not in known]
        with self._lap(self._visual_lap(todo), self._next_lap(hoist, calls)):
            for index in range(len(self.course.blocks)):
                rows = self._rows(hoist, calls, index)
                self._run_block(index, calls, rows)
        return [(call.args[0], call.args[1]) for call in calls]

    def _next_lap(self, hoist: Hoist | None, calls: list[Call]) -> Sequence[str]:
        """What to bring ahead for the lap after this one; nothing after the last step."""
        if hoist is None:
            return self._text_lap()
        is_last = all(call.place is not None and call.place[0] == hoist.steps - 1 for call in calls)
        return () if is_last else self.course.blocks

    def _rows(self, hoist: Hoist | None, calls: list[Call], index: int) -> list[list[Tensor]]:
        """For each call, the row of every lookup of block ``index``; computed if this block's pass is the first."""
        if hoist is None:
            return self._modulate([call.time_embed for call in calls], range(len(calls)))
        places = [call.place for call in calls if call.place is not None]
        if index not in hoist.modulated:
            numbers = [branch * hoist.steps + step for step, branch in places]
            made = self._modulate(hoist.time_embeds, numbers, partial(self._keep, hoist, index))
            hoist.modulated.add(index)
            return made
        columns = range(len(self._modulations.names))
        rows = [(hoist.layouts[branch], self._row(hoist, step, branch)) for step, branch in places]
        return [[layout.modulation(row, index, column) for column in columns] for layout, row in rows]

    def _row(self, hoist: Hoist, step: int, branch: int) -> Tensor:
        """The results of (step, branch): on the device where they were brought there, else in their home."""
        brought = self._step_rows.get(step)
        return hoist.kept[branch][step] if brought is None else brought[branch]

    def _keep(self, hoist: Hoist, index: int, column: int, number: int, made: Tensor) -> None:
        branch, step = divmod(number, hoist.steps)
        hoist.modulation(index, column, step, branch).copy_(made, non_blocking=True)

    def _modulate(
        self,
        embeds: Sequence[tuple[Tensor, Tensor]],
        wanted: Sequence[int],
        keep: Callable[[int, int, Tensor], None] = lambda column, number, made: None,
    ) -> list[list[Tensor]]:
        """One block's modulations of every row, one row at a time: ``keep`` gets all, the ``wanted`` are returned."""
        parts = self._modulations

        def compute() -> list[list[Tensor]]:
            found: dict[int, list[Tensor]] = {number: [] for number in wanted}
            for column, (name, tower) in enumerate(zip(parts.names, parts.towers, strict=True)):
                module = parts.shell.module.get_submodule(name)
                for number, embed in enumerate(embeds):
                    made = module(embed[tower])
                    keep(column, number, made)
                    if number in found:
                        found[number].append(made)
            return [found[number] for number in wanted]

        result: list[list[Tensor]] = self._visit(parts.shell, compute)
        return result

    def _run_block(self, index: int, calls: list[Call], rows: list[list[Tensor]]) -> None:
        """One fused block for every call; each call's arguments then hold its output."""

        def compute() -> None:
            for call, row in zip(calls, rows, strict=True):
                for lookup, value in zip(self._modulations.lookups, row, strict=True):
                    lookup.put(value)
                output = self.block_shell.call(*call.args)
                call.args = (*output, *call.args[2:])

        self._visit(self.block_shell, compute)
        if self.seams.after_block is not None:
            for number, call in enumerate(calls):
                self.seams.after_block(index, number, (call.args[0], call.args[1]))

    def _visit(self, shell: Shell, compute: Callable[[], Any]) -> Any:
        """Bind the next unit of the lap to ``shell`` and queue ``compute``."""
        self.seams.cancel.check()
        loaded = self.conveyor.acquire(self.seams.cancel.check)
        shell.bind(loaded.tensors)
        result = self._device.run(compute, Stream.COMPUTE)
        self.conveyor.release()
        return result

    @contextmanager
    def _lap(self, order: Sequence[str], following: Sequence[str] = ()) -> Iterator[None]:
        """A lap that is left cleanly whatever happens in it."""
        self.conveyor.begin_lap(order, following)
        try:
            yield
        except BaseException:
            self.conveyor.abort()
            raise

    def _give_way(self) -> None:
        """Between steps: give RAM homes back if the machine needs the memory. Slower from then on, never wrong."""
        turned = self.conveyor.take_turned()
        count = self.seams.watch() if self.seams.watch is not None else 0
        homes = self.conveyor.homes
        held = [name for name in self.course.blocks if homes[name] == "ram"]
        names = [held[position] for position in spread(len(held), max(0, min(count, len(held))))]
        freed = self.conveyor.demote(names) if names else 0
        if (turned or names) and self.seams.on_event is not None:
            lost = f"{len(turned) + len(names)} units, {freed / 2**30:.2f} GiB given back"
            self.seams.on_event(
                Replanned(reason=f"host memory ran short ({lost}): they are read from disk in every step from now on")
            )

    def _reserve(self, transformer: Any, timesteps: Tensor, branches: Sequence[Branch]) -> Hoist:
        """Room for all results of a clip, and the time embeddings they depend on."""
        batch, steps = branches[0].tokens.shape[0], len(timesteps)
        widths = {tower: getattr(transformer, f"{tower}_text_embeddings").in_layer.out_features for tower in TOWERS}
        columns, blocks = tuple((batch, width) for width in self._modulations.widths), len(self.course.blocks)
        layouts = [
            RowLayout(self._dtype, {t: (batch, b.tokens.shape[1], widths[t]) for t in TOWERS}, columns, blocks)
            for b in branches
        ]
        self._store.reset(sum(steps * layout.size_bytes for layout in layouts))
        kept = [self._store.take((steps, layout.size_bytes), torch.uint8) for layout in layouts]
        return Hoist(timesteps, list(branches), time_embeds(transformer, timesteps, branches), layouts, kept)

    def _run_texts(self, transformer: Any, hoist: Hoist) -> None:
        """Every text block for all rows as it passes; between blocks a row's state waits in its result."""
        blocks = range(len(self.course.blocks))
        with self._lap(self._text_lap(), self._visual_lap(blocks)):
            for tower in TOWERS:
                embed = getattr(transformer, f"{tower}_text_embeddings")
                rope = getattr(transformer, f"{tower}_text_rope_embeddings")
                starts = [embed(branch.tokens) for branch in hoist.branches]
                ropes = [rope(torch.arange(s.shape[1], device=s.device)) for s in starts]
                for number, _ in enumerate(self.course.texts[tower]):
                    self._run_text_block(tower, hoist, ropes, starts if number == 0 else None)

    def _run_text_block(
        self, tower: str, hoist: Hoist, ropes: Sequence[Tensor], starts: Sequence[Tensor] | None
    ) -> None:
        shell, device, clock = self.text_shells[tower], self._device.torch_device, TOWERS.index(tower)

        def compute() -> None:
            for number, embeds in enumerate(hoist.time_embeds):
                branch, step = divmod(number, hoist.steps)
                kept = hoist.text(tower, step, branch)
                x = starts[branch] if starts is not None else kept.to(device, non_blocking=True)
                mask = hoist.branches[branch].mask
                kept.copy_(shell.call(x, embeds[clock], ropes[branch], mask), non_blocking=True)

        self._visit(shell, compute)
