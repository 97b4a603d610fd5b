"""The reader: every byte, whatever the system refuses; an error, never other bytes, when the file is not the file."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from yellowsound.memory.identity import FileIdentity, ReadError
from yellowsound.memory.pinned import HostBlock
from yellowsound.memory.reader import HostCopy, Reader, ReadRequest, Ticket, Way

PAGE = 4096
SIZE = 10 * PAGE + 77  # the end is no whole page


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes((i * 7 + i // 251) % 256 for i in range(SIZE)))
    return path


def read(reader: Reader, file: Path, offset: int, size: int, needed: int | None = None) -> bytes:
    """The bytes that arrive; raises what the ticket raises."""
    block = HostBlock(size)
    needed = size if needed is None else needed
    ticket = reader.submit(ReadRequest(file, offset, size, needed, block, 0))
    assert ticket.wait(20)
    return bytes(block.bytes[:needed].numpy())


def refusing(*codes: int, at: Callable[[int, int], bool] = lambda offset, flags: True) -> Callable[..., int]:
    """A preadv that fails with each code in turn where ``at`` says so, then works."""
    left = list(codes)

    def preadv(fd: int, buffers: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        if left and at(offset, flags):
            raise OSError(left.pop(0), "injected")
        return os.preadv(fd, buffers, offset)

    return preadv


def test_spans_and_the_short_end_of_the_file(file: Path) -> None:
    reader, data = Reader(), file.read_bytes()
    assert read(reader, file, 0, 3 * PAGE) == data[: 3 * PAGE]
    assert read(reader, file, 2 * PAGE, PAGE) == data[2 * PAGE : 3 * PAGE]
    assert read(reader, file, 8 * PAGE, 3 * PAGE, needed=2 * PAGE + 77) == data[8 * PAGE :]
    reader.close()


def test_many_requests_over_threads_all_arrive(file: Path) -> None:
    reader, data, block = Reader(threads=3), file.read_bytes(), HostBlock(10 * PAGE)
    tickets = [reader.submit(ReadRequest(file, i * PAGE, PAGE, PAGE, block, i * PAGE)) for i in range(10)]
    assert all(ticket.wait(20) for ticket in tickets)
    assert bytes(block.bytes.numpy()) == data[: 10 * PAGE]
    assert reader.bytes_read == 10 * PAGE
    reader.close()


def test_direct_reads_leave_nothing_in_the_page_cache(file: Path) -> None:
    """Where the file system takes O_DIRECT; elsewhere the way says what is used instead."""
    reader = Reader()
    read(reader, file, 0, PAGE)
    assert reader.ways()[file] in (Way.DIRECT, Way.DONTCACHE, Way.BUFFERED)
    reader.close()


def test_open_that_refuses_direct_falls_back_and_says_so(file: Path) -> None:
    def open_file(path: Path, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return os.open(path, flags)

    said: list[str] = []
    reader = Reader(open_file=open_file, report=said.append)
    assert read(reader, file, PAGE, PAGE) == file.read_bytes()[PAGE : 2 * PAGE]
    assert reader.ways()[file] in (Way.DONTCACHE, Way.BUFFERED)
    assert f"{file}: O_DIRECT was refused (Invalid argument)" in said[0]
    reader.close()


def test_reads_that_refuse_step_down_to_the_page_cache(file: Path) -> None:
    said: list[str] = []
    reader = Reader(preadv=refusing(errno.EINVAL, errno.EOPNOTSUPP), report=said.append, threads=1)
    assert read(reader, file, 0, 2 * PAGE) == file.read_bytes()[: 2 * PAGE]
    assert reader.ways()[file] is Way.BUFFERED
    assert [message.split(": ", 1)[1].split(" was")[0] for message in said] == ["O_DIRECT", "RWF_DONTCACHE"]
    reader.close()


def test_interrupted_and_short_reads_are_continued(file: Path) -> None:
    calls: list[int] = []

    def preadv(fd: int, buffers: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        calls.append(offset)
        if len(calls) % 3 == 1:
            raise InterruptedError(errno.EINTR, "Interrupted")
        return os.preadv(fd, [buffers[0][: 5000 if len(calls) < 9 else None]], offset)

    def open_file(path: Path, flags: int) -> int:
        return os.open(path, flags & ~os.O_DIRECT)  # so that a short read of any length is possible

    reader = Reader(preadv=preadv, open_file=open_file, threads=1)
    assert read(reader, file, 0, 8 * PAGE) == file.read_bytes()[: 8 * PAGE]
    assert all(offset % PAGE == 0 for offset in calls)  # a direct read must begin at a page
    reader.close()


def test_an_io_error_names_the_file_and_the_place(file: Path) -> None:
    reader = Reader(preadv=refusing(errno.EIO, at=lambda offset, flags: offset == 3 * PAGE))
    with pytest.raises(ReadError, match=f"{file}: reading at byte {3 * PAGE}: injected"):
        read(reader, file, 3 * PAGE, PAGE)
    assert read(reader, file, 0, PAGE) == file.read_bytes()[:PAGE]  # the reader lives
    reader.close()


def test_a_file_that_ends_too_soon_is_an_error(file: Path) -> None:
    reader = Reader()
    with pytest.raises(ReadError, match=rf"ends at byte \d+, expected {12 * PAGE} or more"):
        read(reader, file, 10 * PAGE, 2 * PAGE)
    reader.close()


@pytest.mark.parametrize("how", ["longer", "touched", "renamed", "gone", "header"])
def test_a_replaced_file_is_an_error(file: Path, tmp_path: Path, how: str) -> None:
    identity = FileIdentity.of(file)
    reader = Reader([identity])
    if how != "header":
        read(reader, file, 0, PAGE)
    data, stat = file.read_bytes(), file.stat()
    if how == "longer":
        file.write_bytes(data + b"x")
    elif how == "touched":
        os.utime(file, ns=(1, 1))
    elif how == "renamed":
        (tmp_path / "other").write_bytes(data)
        os.utime(tmp_path / "other", ns=(stat.st_atime_ns, stat.st_mtime_ns))
        (tmp_path / "other").rename(file)
    elif how == "gone":
        file.unlink()
    else:
        file.write_bytes(b"\xff" + data[1:])
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(ReadError, match=str(file)) as error:
        read(reader, file, 0, PAGE)
    assert ("gone" if how == "gone" else "replaced while in use") in str(error.value)
    reader.close()


def test_a_host_copy_goes_through_the_same_threads() -> None:
    source, target = HostBlock(PAGE), HostBlock(2 * PAGE)
    source.bytes.fill_(9)
    reader = Reader()
    assert reader.submit(HostCopy(source, 0, PAGE, target, PAGE)).wait(20)
    assert target.bytes[PAGE:].eq(9).all()
    assert target.bytes[:PAGE].eq(0).all()
    reader.close()


def test_before_and_after_run_around_the_read(file: Path) -> None:
    block, seen = HostBlock(PAGE), []
    request = ReadRequest(
        file, 0, PAGE, PAGE, block, 0,
        before=lambda: seen.append(("before", int(block.bytes[5]))),
        after=lambda: seen.append(("after", int(block.bytes[5]))),
    )  # fmt: skip
    reader = Reader()
    assert reader.submit(request).wait(20)
    assert seen == [("before", 0), ("after", 35)]
    reader.close()


def test_cancelled_requests_never_write(file: Path) -> None:
    began, gate, block = threading.Event(), threading.Event(), HostBlock(4 * PAGE)
    reader = Reader(threads=1)

    def request(page: int, before: Callable[[], None] | None = None) -> Ticket:
        return reader.submit(ReadRequest(file, page * PAGE, PAGE, PAGE, block, page * PAGE, before=before))

    def hold() -> None:
        began.set()
        gate.wait(20)

    first = request(0, before=hold)
    assert began.wait(20)
    rest = [request(page) for page in (1, 2, 3)]
    threading.Timer(0.05, gate.set).start()
    reader.cancel([first, *rest])  # waits for the one under way
    assert first.is_done and first.error is None
    assert block.bytes[PAGE:].eq(0).all()
    with pytest.raises(ReadError, match="cancelled"):
        rest[0].wait(1)
    reader.close()


def test_close_ends_threads_and_descriptors_and_refuses_more(file: Path) -> None:
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    reader = Reader(threads=4)
    read(reader, file, 0, PAGE)
    assert threading.active_count() == threads + 4
    reader.close()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files
    with pytest.raises(ValueError, match="closed"):
        reader.submit(ReadRequest(file, 0, PAGE, PAGE, HostBlock(PAGE), 0))
