"""Runs jobs on engines inside a worker: events to messages, clips to files, exceptions to failure codes."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from yellowsound.events import CancelToken, Event, Preview
from yellowsound.request import ClipRequest
from yellowsound.serve.clip_facts import ClipFacts, read_clip, webp
from yellowsound.serve.engine_shelf import EngineShelf
from yellowsound.serve.failures import classify, plain_reason
from yellowsound.serve.worker_memory import give_back, memory_beat, reset_vram_peak
from yellowsound.serve.worker_protocol import (
    EncodeAhead,
    Failed,
    Finished,
    Load,
    Loaded,
    LoadFailed,
    Message,
    Run,
    Told,
    WorkerOptions,
)


class JobRunner:
    """One job at a time on the engines of one device. ``tell`` takes messages from any thread."""

    def __init__(self, options: WorkerOptions, tell: Callable[[Message], None]) -> None:
        self._tell = tell
        self._shelf = EngineShelf(options)
        self._lock = threading.Lock()
        self._running: tuple[str, CancelToken] | None = None
        self._cancelled_early: set[str] = set()

    def load(self, command: Load) -> None:
        """Open a checkpoint and tell how it went."""
        began = time.monotonic()
        try:
            engine = self._shelf.engine(command.source, command.recipe)
        except Exception as error:
            self._tell(LoadFailed(source=command.source, message=plain_reason(error)))
            return
        seconds, facts = time.monotonic() - began, dict(getattr(engine, "facts", {}))
        self._tell(Loaded(source=command.source, recipe=command.recipe, seconds=seconds, facts=facts))

    def run(self, command: Run) -> Finished | Failed:
        """Make the clip; every way it can end is a message."""
        token = CancelToken()
        with self._lock:
            self._running = (command.job_id, token)
            if command.job_id in self._cancelled_early:
                self._cancelled_early.discard(command.job_id)
                token.cancel()
        try:
            return self._make(command, token)
        except BaseException as error:
            code, message, fatal = classify(error)
            return Failed(job_id=command.job_id, attempt=command.attempt, code=code, message=message, fatal=fatal)
        finally:
            with self._lock:
                self._running = None
            give_back()

    def cancel(self, job_id: str) -> None:
        """Stop the job at its next block or tile; one that has not begun yet will not."""
        with self._lock:
            if self._running is not None and self._running[0] == job_id:
                self._running[1].cancel()
            else:
                self._cancelled_early = {job_id}

    def encode_ahead(self, command: EncodeAhead) -> None:
        """Encode prompts beside the running job where the engine declares that it can."""
        engine = self._shelf.loaded(command.source, command.recipe)
        if engine is not None and getattr(engine, "encodes_beside_a_job", False):
            with contextlib.suppress(Exception):  # a guess about the future must not end the present
                engine.encode_ahead(command.prompts)

    def close(self) -> None:
        self._shelf.close()

    def _make(self, command: Run, token: CancelToken) -> Finished:
        reset_vram_peak()
        durations: dict[str, float] = {}
        token.check()
        with _Stage(self, command, durations):
            engine = self._shelf.engine(command.source, command.recipe)
        request = ClipRequest(**command.request, image=command.image)
        with contextlib.ExitStack() as stack:
            out = Path(command.out) if command.out else self._temporary(stack, command)
            began = time.monotonic()
            clip = engine.generate(request, on_event=self._listener(command, durations), cancel=token, out=out)
            seconds = time.monotonic() - began
            metadata = dict(getattr(clip, "metadata", {}) or {})
            del clip
            token.check()
            return self._finished(command, read_clip(out), seconds, durations, metadata)

    def _temporary(self, stack: contextlib.ExitStack, command: Run) -> Path:
        return Path(stack.enter_context(tempfile.TemporaryDirectory())) / f"{command.job_id}.mp4"

    def _finished(
        self, command: Run, clip: ClipFacts, seconds: float, durations: dict[str, float], metadata: dict[str, Any]
    ) -> Finished:
        beat = memory_beat()
        facts = {
            **clip.facts,
            "inference_seconds": round(seconds, 3),
            "stage_seconds": {stage: round(value, 3) for stage, value in durations.items()},
            "vram_peak_bytes": beat.vram_peak_bytes,
            "rss_peak_bytes": beat.rss_peak_bytes,
            "recipe": metadata.get("recipe"),
        }
        return Finished(
            job_id=command.job_id,
            attempt=command.attempt,
            facts=facts,
            first_frame=clip.first_frame,
            last_frame=clip.last_frame,
            clip=None if command.out else clip.path.read_bytes(),
        )

    def _listener(self, command: Run, durations: dict[str, float]) -> Callable[[Event], None]:
        def on_event(event: Event) -> None:
            self.tell_event(command, durations, event)

        return on_event

    def tell_event(self, command: Run, durations: dict[str, float], event: Event) -> None:
        """Send one engine event on; a preview's pixels travel as a WebP beside it."""
        strip = None
        if isinstance(event, Preview):
            strip = webp(event.strip)
            plain: dict[str, Any] = {"type": "Preview", "time": event.time, "step": event.step, "frames": event.frames}
        else:
            plain = event.to_json()
        if plain["type"] == "StageEnded":
            durations[plain["stage"]] = durations.get(plain["stage"], 0.0) + plain["seconds"]
        self._tell(Told(job_id=command.job_id, attempt=command.attempt, event=plain, strip=strip))


class _Stage:
    """Tells the load stage of a job."""

    def __init__(self, runner: JobRunner, command: Run, durations: dict[str, float]) -> None:
        self._runner, self._command, self._durations = runner, command, durations

    def __enter__(self) -> None:
        from yellowsound.events import StageBegan

        self._began = time.monotonic()
        self._runner.tell_event(self._command, self._durations, StageBegan(stage="load"))

    def __exit__(self, *_: object) -> None:
        from yellowsound.events import StageEnded

        seconds = time.monotonic() - self._began
        self._runner.tell_event(self._command, self._durations, StageEnded(stage="load", seconds=seconds))
