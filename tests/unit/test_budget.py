"""Budgets on canned /proc and /sys: meminfo, cgroups v1 and v2, nested, unlimited, in containers; sizes; cards."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yellowsound.memory.budget import (
    GIB,
    HostMemory,
    format_bytes,
    host_memory,
    parse_bytes,
    parse_speed,
    reserve_bytes,
)
from yellowsound.memory.probe import Card, driver_id, parse_nvidia_smi, this_machine
from yellowsound.request import RequestError


def canned(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def meminfo(total_gib: float, available_gib: float) -> str:
    kib = [int(value * (1 << 20)) for value in (total_gib, 1, available_gib)]
    return f"MemTotal: {kib[0]} kB\nMemFree: {kib[1]} kB\nMemAvailable: {kib[2]} kB\nCached: {kib[1]} kB\n"


def v2(
    limit: str, usage_gib: float, inactive_gib: float = 0, active_gib: float = 0, tmpfs_gib: float = 0
) -> dict[str, str]:
    file = inactive_gib + active_gib + tmpfs_gib
    stat = {"file": file, "inactive_file": inactive_gib, "active_file": active_gib, "shmem": tmpfs_gib}
    return {
        "memory.max": f"{limit}\n",
        "memory.current": f"{int(usage_gib * GIB)}\n",
        "memory.stat": "".join(f"{name} {int(size * GIB)}\n" for name, size in stat.items()),
    }


def under(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": text for name, text in files.items()}


def test_without_a_cgroup_memavailable_is_offered(tmp_path: Path) -> None:
    memory = host_memory(canned(tmp_path, {"proc/meminfo": meminfo(64, 50)}))
    assert memory == HostMemory(64 * GIB, 50 * GIB, "MemAvailable")
    assert memory.budget_bytes == 50 * GIB - int(64 * GIB * 0.08)


def test_old_kernels_without_memavailable(tmp_path: Path) -> None:
    text = "MemTotal: 1048576 kB\nMemFree: 102400 kB\nCached: 204800 kB\n"
    assert host_memory(canned(tmp_path, {"proc/meminfo": text})).available_bytes == 307200 * 1024


def test_tightest_group_of_a_v2_chain_decides(tmp_path: Path) -> None:
    root = canned(tmp_path, {
        "proc/meminfo": meminfo(256, 200),
        "proc/self/cgroup": "0::/user.slice/job.scope\n",
        **under("sys/fs/cgroup/user.slice", v2(str(40 * GIB), 30, inactive_gib=6, active_gib=4)),
        **under("sys/fs/cgroup/user.slice/job.scope", v2(str(60 * GIB), 10)),
    })  # fmt: skip
    memory = host_memory(root)
    assert memory.total_bytes == 40 * GIB
    assert memory.available_bytes == 20 * GIB  # 40 - (30 used - 10 of page cache)
    assert memory.bound == "cgroup sys/fs/cgroup/user.slice"


def test_page_cache_counts_as_free_but_tmpfs_does_not(tmp_path: Path) -> None:
    files = {"proc/meminfo": meminfo(256, 200), "proc/self/cgroup": "0::/a\n"}
    root = canned(tmp_path, files | under("sys/fs/cgroup/a", v2(str(32 * GIB), 20, inactive_gib=5, tmpfs_gib=8)))
    assert host_memory(root).available_bytes == 17 * GIB


def test_memory_high_counts_as_a_limit(tmp_path: Path) -> None:
    group = v2(str(32 * GIB), 2) | {"memory.high": f"{24 * GIB}\n"}
    files = {"proc/meminfo": meminfo(64, 60), "proc/self/cgroup": "0::/a\n"}
    assert host_memory(canned(tmp_path, files | under("sys/fs/cgroup/a", group))).available_bytes == 22 * GIB


def test_unlimited_groups_change_nothing(tmp_path: Path) -> None:
    files = {"proc/meminfo": meminfo(64, 60), "proc/self/cgroup": "0::/a\n"}
    root = canned(tmp_path, files | under("sys/fs/cgroup/a", v2("max", 50)))
    assert host_memory(root) == HostMemory(64 * GIB, 60 * GIB, "MemAvailable")


def test_a_container_that_sees_the_hosts_path(tmp_path: Path) -> None:
    """cgroup namespace of the host, but only the container's own tree mounted: the mount itself holds the limit."""
    files = {"proc/meminfo": meminfo(256, 200), "proc/self/cgroup": "0::/../../docker/0123abcd\n"}
    root = canned(tmp_path, files | under("sys/fs/cgroup", v2(str(16 * GIB), 1)))
    assert host_memory(root).available_bytes == 15 * GIB


def test_v1_beside_v2_at_a_mount_of_its_own(tmp_path: Path) -> None:
    mounts = (
        "30 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "31 25 0:27 / /mnt/memory rw - cgroup cgroup rw,memory\n"
    )
    stat = f"cache {9 * GIB}\ntotal_inactive_file {3 * GIB}\ntotal_active_file {1 * GIB}\n"
    root = canned(tmp_path, {
        "proc/meminfo": meminfo(128, 100),
        "proc/self/mountinfo": mounts,
        "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/x/y\n0::/\n",
        "mnt/memory/x/memory.limit_in_bytes": "9223372036854771712\n",
        "mnt/memory/x/memory.usage_in_bytes": "5\n",
        "mnt/memory/x/y/memory.limit_in_bytes": f"{32 * GIB}\n",
        "mnt/memory/x/y/memory.usage_in_bytes": f"{12 * GIB}\n",
        "mnt/memory/x/y/memory.stat": stat,
    })  # fmt: skip
    memory = host_memory(root)
    assert (memory.total_bytes, memory.available_bytes) == (32 * GIB, 24 * GIB)
    assert memory.bound == "cgroup mnt/memory/x/y"


def test_a_group_over_its_limit_offers_nothing(tmp_path: Path) -> None:
    files = {"proc/meminfo": meminfo(64, 60), "proc/self/cgroup": "0::/a\n"}
    root = canned(tmp_path, files | under("sys/fs/cgroup/a", v2(str(8 * GIB), 9)))
    assert host_memory(root).available_bytes == 0 and host_memory(root).budget_bytes == 0


def test_this_host_can_be_read() -> None:
    memory = host_memory()
    assert 0 < memory.available_bytes <= memory.total_bytes


@pytest.mark.parametrize(
    ("total", "available", "reserve"), [(32, 28, 4), (64, 60, 5.12), (256, 200, 20.48), (16, 6, 3), (4, 3, 1.5)]
)
def test_reserve_is_four_gib_or_eight_percent_within_reason(total: float, available: float, reserve: float) -> None:
    assert reserve_bytes(int(total * GIB), int(available * GIB)) == int(reserve * GIB)


@given(st.integers(0, 512 * GIB), st.integers(0, 512 * GIB), st.integers(0, 64 * GIB))
def test_more_available_memory_never_gives_a_smaller_budget(total: int, available: int, more: int) -> None:
    budgets = [HostMemory(total, a, "").budget_bytes for a in (available, available + more)]
    assert 0 <= budgets[0] <= budgets[1]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("60GiB", 60 << 30), ("32GB", 32_000_000_000), ("16g", 16 << 30), ("1.5 TiB", 3 << 39), ("512M", 512 << 20),
        ("1048576", 1 << 20), ("0.5kib", 512), (7, 7), ("7b", 7),
    ],
)  # fmt: skip
def test_sizes_people_write(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "60 gigs", "1e9", "nan", "60GiB60", True, "9" * 5000])
def test_sizes_that_are_none_are_refused_by_name(text: str) -> None:
    with pytest.raises(RequestError, match="ram="):
        parse_bytes(text, "ram")


@pytest.mark.parametrize(
    ("text", "guess"), [("16", "16GiB?"), ("1.5", "1.5GiB?"), ("65536", "65536MiB?"), ("1048575", "1048575MiB?")]
)
def test_a_small_number_of_bytes_lacks_its_unit(text: str, guess: str) -> None:
    with pytest.raises(RequestError, match=re.escape(f"vram={text}: lacks its unit: {guess}")):
        parse_bytes(text, "vram")


@pytest.mark.parametrize(
    ("text", "guess"),
    [("7", "7GB/s?"), ("3.5", "3.5GB/s?"), ("99.5/s", "99.5GB/s?"), ("550", "550MB/s?")],
)
def test_a_small_speed_lacks_its_unit(text: str, guess: str) -> None:
    with pytest.raises(RequestError, match=re.escape(f"disk_speed={text}: lacks its unit: {guess}")):
        parse_speed(text)
    assert parse_speed(7) == 7 and parse_speed("7000000000") == 7_000_000_000


def test_speeds() -> None:
    assert parse_speed("3.5GB/s") == 3_500_000_000 and parse_speed("1GiB") == GIB
    with pytest.raises(RequestError, match=r"disk_speed=.*3\.5GB/s"):
        parse_speed("fast")


def test_bytes_for_people() -> None:
    assert [format_bytes(size) for size in (45 * GIB // 2, 88 << 20, 2048)] == ["22.5 GiB", "88 MiB", "2 KiB"]


def test_a_known_card_takes_its_presets_rates(tmp_path: Path) -> None:
    root = canned(tmp_path, {"proc/meminfo": meminfo(64, 60)})
    card = Card("NVIDIA GeForce RTX 5090", 32 * GIB, 30 * GIB, 5, 16)
    machine = this_machine(root=root, find_card=lambda index: card, disk_bytes_per_second=7e9)
    assert (machine.device, machine.vram_free_bytes, machine.ram_available_bytes) == ("cuda", 30 * GIB, 60 * GIB)
    assert machine.rates.gemm_flops == 210e12 and machine.notes == ()
    assert machine.link_bytes_per_second == pytest.approx(54.8e9, rel=0.01)


def test_an_unknown_card_is_computed_from_cores_and_clock(tmp_path: Path) -> None:
    root = canned(tmp_path, {"proc/meminfo": meminfo(64, 60)})
    card = Card("NVIDIA GeForce RTX 7777", 24 * GIB, 24 * GIB, 4, 8, cores=10_000, clock_hz=2.5e9)
    machine = this_machine(root=root, find_card=lambda index: card)
    assert machine.rates.gemm_flops == pytest.approx(80e12) and machine.rates.basis == "computed"
    assert any("disk" in note for note in machine.notes)


def test_without_a_card_host_memory_is_the_devices(tmp_path: Path) -> None:
    root = canned(tmp_path, {"proc/meminfo": meminfo(16, 12)})
    machine = this_machine(root=root, find_card=lambda index: None)
    assert (machine.device, machine.vram_free_bytes) == ("cpu", 12 * GIB)
    card = Card("NVIDIA GeForce RTX 5090", 32 * GIB, 30 * GIB)
    assert this_machine(root=root, find_card=lambda index: card, cpu=True).device == "cpu"


def test_wsl2_limits_page_locked_memory(tmp_path: Path) -> None:
    release = {"proc/sys/kernel/osrelease": "5.15.167.4-microsoft-standard-WSL2\n"}
    root = canned(tmp_path, {"proc/meminfo": meminfo(32, 28)} | release)
    machine = this_machine(root=root, find_card=lambda index: Card("NVIDIA GeForce RTX 4090", 24 * GIB, 23 * GIB))
    assert machine.pin_limit_bytes == 16 * GIB and any("WSL2" in note for note in machine.notes)


def test_workers_share_the_host(tmp_path: Path) -> None:
    root = canned(tmp_path, {"proc/meminfo": meminfo(64, 60)})
    card = Card("NVIDIA L40S", 48 * GIB, 44 * GIB, 4, 16)
    alone, half = (this_machine(root=root, find_card=lambda index: card, workers=n) for n in (1, 2))
    assert half.ram_available_bytes == alone.ram_available_bytes // 2
    assert half.disk_bytes_per_second == alone.disk_bytes_per_second / 2
    assert half.vram_free_bytes == alone.vram_free_bytes and half.workers == 2


@pytest.mark.parametrize(
    ("index", "visible", "driver"),
    [
        (1, None, 1),
        (0, "3,1", 3),
        (1, "3,1", 1),
        (0, "GPU-5f0c", "GPU-5f0c"),
        (0, "", None),
        (2, "0,1", None),
        (0, "-1", None),
    ],
)
def test_cards_are_counted_as_cuda_counts_them(index: int, visible: str | None, driver: int | str | None) -> None:
    assert driver_id(index, visible) == driver


def test_nvidia_smi_lines() -> None:
    card = parse_nvidia_smi("NVIDIA GeForce RTX 4090, 24564, 23028, 4, 16, 3105\n")
    assert card == Card("NVIDIA GeForce RTX 4090", 24564 << 20, 23028 << 20, 4, 16, 0, 3105e6)
    partly = parse_nvidia_smi("NVIDIA Odd, Name, 100, 90, [N/A], [N/A], [N/A]")
    assert partly is not None and (partly.name, partly.pcie_lanes) == ("NVIDIA Odd, Name", 0)
    assert parse_nvidia_smi("No devices were found") is None
