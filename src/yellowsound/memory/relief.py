"""Relief: how much host memory to give back when somebody else needs it.

Asked between steps, before the reserve is gone: a home given up costs reads, swapping or being killed costs the clip.
"""

from __future__ import annotations

from pathlib import Path

from yellowsound.memory.budget import host_memory, reserve_bytes


def shortfall(root: Path = Path("/")) -> int:
    """Bytes to give back now: what is missing to the full reserve once less than half of it is left, else 0."""
    memory = host_memory(root)
    reserve = reserve_bytes(memory.total_bytes, memory.total_bytes)
    return reserve - memory.available_bytes if memory.available_bytes < reserve // 2 else 0
