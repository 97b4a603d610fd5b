"""doctor on canned /proc and /sys files: each finding, and its remedy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from yellowsound.measure import disk_speed as disk
from yellowsound.measure import doctor
from yellowsound.measure.doctor import Line, TorchFacts, look
from yellowsound.memory.probe import Card

GIB = 1 << 30
CARD = Card("NVIDIA GeForce RTX 5080", 16 * GIB, 15 * GIB, 5, 16)
TORCH = TorchFacts("2.13.0+cu130", "13.0", True, (12, 0))
CPU_TORCH = TorchFacts("2.13.0+cpu", None, False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A desktop with 64 GB, a card in a full slot, huge pages on request."""
    write(tmp_path, "proc/meminfo", "MemTotal: 65536000 kB\nMemFree: 100 kB\nMemAvailable: 60000000 kB\n")
    write(tmp_path, "proc/sys/kernel/osrelease", "6.12.0-amd64\n")
    write(tmp_path, "proc/self/limits", "Limit  Soft  Hard  Units\nMax locked memory         8388608  8388608  bytes\n")
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n"
    write(tmp_path, "proc/driver/nvidia/version", version)
    write(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    device(tmp_path, width="16")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def device(root: Path, width: str) -> None:
    folder = "sys/bus/pci/devices/0000:01:00.0"
    facts = {"vendor": "0x10de", "class": "0x030000", "current_link_width": width, "max_link_width": "16"}
    facts |= {"current_link_speed": "2.5 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe"}
    for name, text in facts.items():
        write(root, f"{folder}/{name}", f"{text}\n")
    write(root, "sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n")  # its sound function: no display class
    write(root, "sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n")


def lines(root: Path, card: Card | None = CARD, torch: TorchFacts = TORCH) -> dict[str, Line]:
    return {line.what: line for line in look(root=root, find_card=lambda _: card, ask_torch=lambda: torch)}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_good_desktop(root: Path) -> None:
    found = lines(root)
    assert found["card"] == Line("card", "ok", "NVIDIA GeForce RTX 5080")
    assert found["driver"].value == "580.65.06"
    assert (found["vram"].state, found["vram"].value) == ("ok", "16.0 GiB, 15.0 GiB free")
    assert found["torch"].value == "2.13.0+cu130 (CUDA 13.0)" and found["torch"].state == "ok"
    assert found["ram"] == Line("ram", "ok", "62.5 GiB, 57.2 GiB to be had (MemAvailable)")
    assert found["pinned memory"].value.startswith("no limit known; ulimit -l is 8 MiB")
    assert found["huge pages"] == Line("huge pages", "ok", "madvise")
    assert found["link"].value.startswith("x16 of x16, 32.0 GT/s at most (now 2.5 GT/s")
    assert not [line for line in found.values() if line.state == "missing"]


def test_every_line_with_a_problem_has_a_remedy(root: Path) -> None:
    device(root, width="4")
    write(root, "sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    for line in lines(root, torch=CPU_TORCH).values():
        assert line.remedy if line.state == "missing" else "\n" not in line.value


def test_no_card_at_all(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\n")
    found = lines(tmp_path, None, CPU_TORCH)
    assert found["card"] == Line("card", "note", "none: clips are made on the CPU")
    assert found["torch"].state == "ok" and "pinned memory" not in found and "link" not in found
    assert "45.5 GiB" in found["ram"].remedy


def test_card_without_driver(root: Path) -> None:
    found = lines(root, None, CPU_TORCH)
    assert found["card"].state == "missing" and "driver" in found["card"].remedy


def test_hidden_card(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    card = lines(root)["card"]
    assert card.state == "note" and "CUDA_VISIBLE_DEVICES" in card.value and "unset" in card.remedy


def test_cpu_build_beside_a_card(root: Path) -> None:
    torch = lines(root, torch=CPU_TORCH)["torch"]
    assert torch.state == "missing" and "CUDA build" in torch.remedy


def test_old_driver(root: Path) -> None:
    torch = lines(root, torch=TorchFacts("2.13.0+cu130", "13.0", False))["torch"]
    assert torch.state == "missing" and "older than CUDA 13.0" in torch.remedy


def test_old_card(root: Path) -> None:
    assert lines(root, torch=TorchFacts("2.13.0", "12.8", True, (7, 5)))["capability"].value == "7.5"


def test_busy_card(root: Path) -> None:
    vram = lines(root, Card("X", 16 * GIB, 9 * GIB))["vram"]
    assert vram.state == "note" and "other programs" in vram.remedy


@pytest.mark.parametrize("generation", [1, 2])
def test_container_limit(root: Path, generation: int) -> None:
    if generation == 2:
        write(root, "proc/self/cgroup", "0::/\n")
        files = {"memory.max": f"{16 * GIB}", "memory.current": f"{4 * GIB}", "memory.stat": f"inactive_file {GIB}\n"}
        folder = "sys/fs/cgroup"
    else:
        write(root, "proc/self/cgroup", "5:memory:/\n")
        folder = "sys/fs/cgroup/memory"
        files = {
            "memory.limit_in_bytes": f"{16 * GIB}", "memory.usage_in_bytes": f"{4 * GIB}",
            "memory.stat": f"total_inactive_file {GIB}\n",
        }  # fmt: skip
    for name, text in files.items():
        write(root, f"{folder}/{name}", text)
    ram = lines(root)["ram"]
    assert ram.state == "note" and ram.value.startswith("16.0 GiB, 13.0 GiB to be had (cgroup")
    assert "docker --memory" in ram.remedy


def test_wsl2(root: Path) -> None:
    write(root, "proc/sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2\n")
    pinned = lines(root)["pinned memory"]
    assert pinned.state == "note" and ".wslconfig" in pinned.remedy and "WSL2" in pinned.value


def test_no_huge_pages(root: Path) -> None:
    write(root, "sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    pages = lines(root)["huge pages"]
    assert pages.state == "note" and "echo madvise | sudo tee" in pages.remedy


def test_narrow_slot(root: Path) -> None:
    device(root, width="4")
    link = lines(root)["link"]
    assert link.state == "note" and link.value.startswith("x4 of x16") and "slot" in link.remedy


def test_offline_and_small_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, 20_000_000_000))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = lines(root)
    assert found["weights"].state == "note" and "81 GB" in found["weights"].remedy
    assert "HF_HUB_OFFLINE" in found["network"].remedy


def test_packages(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {
        "torch": "2.13.0",
        "diffusers": "0.43.0",
        "transformers": None,
        "triton": "3.5.0",
        "sageattention": "2.2",
    }
    monkeypatch.setattr(doctor, "_version", lambda name: versions.get(name))
    found = lines(root)
    assert found["diffusers"].state == "note" and ">=0.42,<0.43" in found["diffusers"].remedy
    assert found["transformers"].state == "missing" and found["av"].state == "missing"
    assert "triton 3.5.0" in found["optional"].value and "sageattention 2.2" in found["optional"].value
    assert "triton" not in found


def test_triton_missing_beside_a_card(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    assert lines(root)["triton"].state == "note"


def test_disk_speed_reads_every_byte_once(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(os.urandom(5 * disk.CHUNK_BYTES + 100))
    found = disk.disk_speed(tmp_path, test_bytes=1, seconds=60)
    assert found.file == str(file) and found.read_bytes == 5 * disk.CHUNK_BYTES and found.bytes_per_second > 0


def test_disk_speed_writes_and_removes_its_own_file(tmp_path: Path) -> None:
    found = disk.disk_speed(tmp_path, test_bytes=2 * disk.CHUNK_BYTES)
    assert found.read_bytes == 2 * disk.CHUNK_BYTES and not list(tmp_path.iterdir())
    assert found.file == str(tmp_path)  # what is gone again is not named


def test_a_folder_that_cannot_be_measured_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as refused:
        disk.disk_speed(tmp_path / "missing", test_bytes=1)
    assert refused.value.filename == str(tmp_path / "missing")


def test_disk_speed_says_when_direct_reading_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refusing(path: object, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(path, flags, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refusing)
    file = tmp_path / "x"
    file.write_bytes(bytes(100))
    assert not disk.disk_speed(file).is_direct


def test_command(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from yellowsound.cli import doctor as command

    monkeypatch.setattr(doctor, "look", lambda: list(lines(root, torch=CPU_TORCH).values()))
    monkeypatch.setattr(command, "measured", lambda place: Line("disk", "ok", f"1.00 GB/s of {place}"))
    with pytest.raises(SystemExit) as caught:
        command.doctor(disk=tmp_path)
    assert caught.value.code == 1
    out = capsys.readouterr().out
    assert "MISSING torch" in out and "1.00 GB/s" in out and len(out.splitlines()) == len(lines(root)) + 1
    with pytest.raises(SystemExit):
        command.doctor(json=True)
    assert {"what", "state", "value", "remedy"} == set(json.loads(capsys.readouterr().out)[0])
