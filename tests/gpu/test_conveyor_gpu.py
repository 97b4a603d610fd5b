"""The conveyor on a real card: registered memory, its own stream, one graph for all blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from streaming_world import make_clip, plan_of

from yellowsound.checkpoint import Checkpoint
from yellowsound.memory.device import CudaDevice, Fence, Stream
from yellowsound.memory.loader import load_streamed_transformer
from yellowsound.memory.pinned import CudaRegistrar, HostBlock
from yellowsound.memory.stack import close_streamed, driver_of, predict, prepare_clip

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_copies_from_registered_memory_run_on_their_own_stream() -> None:
    device = CudaDevice(torch.device("cuda"))
    block = device.alloc_host(1 << 20)
    block.populate()
    block.bytes.fill_(3)
    assert block.pin() and block.bytes.is_pinned()
    buffer = device.alloc(1 << 20)
    assert buffer.data_ptr() % 512 == 0
    device.copy(buffer, block.bytes, Stream.COPY)
    device.synchronize(device.record(Stream.COPY, Fence.IDLE), Fence.IDLE)
    assert bool(buffer.eq(3).all())
    device.free(block)
    device.close()


def test_a_refused_registration_leaves_no_error_behind() -> None:
    registrar = CudaRegistrar()
    block = HostBlock(1 << 20)
    assert registrar.register(block.address, 1 << 20)
    assert not registrar.register(block.address, 1 << 20)  # registered already
    assert float(torch.ones(8, device="cuda").sum()) == 8.0
    registrar.unregister(block.address)
    block.close()


def test_a_compiled_shell_serves_every_block_with_one_graph(tiny_sft: Path) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    checkpoint = Checkpoint.open(tiny_sft)
    clip = make_clip(torch.bfloat16, guidance=False).to("cuda")
    model = load_streamed_transformer(checkpoint, plan_of(checkpoint, "VRD"), "cuda", torch.bfloat16)
    driver = driver_of(model)
    assert driver is not None
    counter = CompileCounterWithBackend("inductor")
    driver.compile(backend=counter, fullgraph=True)
    with torch.no_grad():
        prepare_clip(model, clip.timesteps, clip.branches)
        for step in range(2):
            (output,) = predict(model, [clip.inputs(step, 0)])
            assert all(bool(tensor.isfinite().all()) for tensor in output)
    assert counter.frame_count == 3
    close_streamed(model)
    torch._dynamo.reset()
