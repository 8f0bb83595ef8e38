"""Digests of blocks: no damaged byte is given to a reader, and nothing is read twice."""

from __future__ import annotations

import io
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from checkpoints import alone, names, on_disk
from hypothesis import assume, given, strategies as st

from chaoslab.resilience import digests, layout
from chaoslab.resilience.errors import CheckpointCorrupt, CheckpointError

DATA = bytes(range(256)) * 4


def written(parts: list[bytes], block_bytes: int) -> tuple[bytes, digests.DigestingFile]:
    sink = io.BytesIO()
    file = digests.DigestingFile(sink, block_bytes=block_bytes)
    assert [file.write(part) for part in parts] == [len(part) for part in parts]
    return sink.getvalue(), file


@on_disk
@given(st.lists(st.binary(max_size=100)), st.integers(1, 64))
def test_digests_are_those_of_the_blocks_however_it_was_written(
    parts: list[bytes], block_bytes: int
) -> None:
    """Each block's digest is XXH3-128 of its bytes; the file has all bytes in order."""
    data, file = written(parts, block_bytes)
    assert data == b"".join(parts)
    blocks = [data[start : start + block_bytes] for start in range(0, len(data), block_bytes)]
    assert file.digests == "".join(xxhash.xxh3_128_hexdigest(block) for block in blocks)
    assert file.size_bytes == len(data)


def opened(
    directory: str,
    data: bytes,
    block_bytes: int,
    found: bytes | None = None,
    shared_bytes: int = digests.SHARED_BYTES,
) -> digests.VerifiedFile:
    """Open a file that holds `found` where `data` was saved."""
    _, file = written([data], block_bytes)
    path = Path(directory, "shard")
    path.write_bytes(data if found is None else found)
    return digests.VerifiedFile(
        path, len(data), block_bytes, file.digests, shared_bytes=shared_bytes
    )


Shared = st.sampled_from([0, 600, digests.SHARED_BYTES])
"""From how many bytes on two threads share a read: always, sometimes, never."""
Reads = st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(0, len(DATA))), max_size=8)


@on_disk
@given(st.integers(1, 1500), Reads, Shared)
def test_reads_in_any_order_give_what_was_written(
    block_bytes: int, reads: list[tuple[int, int]], shared_bytes: int
) -> None:
    """Seek, read and readinto behave as a file's."""
    with (
        tempfile.TemporaryDirectory() as directory,
        opened(directory, DATA, block_bytes, shared_bytes=shared_bytes) as file,
    ):
        for place, size in reads:
            file.seek(place)
            target = bytearray(size)
            got = file.readinto(target)
            assert bytes(target[:got]) == DATA[place : place + size]
            assert file.tell() == place + got
            file.seek(place)
            assert file.read(size) == DATA[place : place + size]
        file.seek(-1, os.SEEK_END)
        assert file.read() == DATA[-1:]
        file.verify_rest()


@on_disk
@given(st.integers(1, 1500), st.integers(0, len(DATA) - 1), st.integers(1, 255), Reads, Shared)
def test_no_byte_of_a_damaged_block_is_given(
    block_bytes: int, at: int, change: int, reads: list[tuple[int, int]], shared_bytes: int
) -> None:
    """A read that touches it gives nothing and says why; any other read is as ever."""
    found = bytearray(DATA)
    found[at] ^= change
    bad = range(at // block_bytes * block_bytes, (at // block_bytes + 1) * block_bytes)
    with (
        tempfile.TemporaryDirectory() as directory,
        opened(directory, DATA, block_bytes, bytes(found), shared_bytes) as file,
    ):
        for place, size in reads:
            file.seek(place)
            wanted = DATA[place : place + size]
            touches = bool(wanted) and place < bad.stop and place + len(wanted) > bad.start
            assert file.read(size) == (b"" if touches else wanted)
            assert not touches or "does not have the digest" in str(file.damage)
        with pytest.raises(CheckpointCorrupt, match="does not have the digest"):
            file.verify_rest()


class Noted(digests.VerifiedFile):
    """Notes which thread makes each read, and lets a thread wait before it does."""

    readers: list[int]
    before: Callable[[], None]

    def _read_at(self, place: int, piece: memoryview) -> int:
        self.before()
        self.readers.append(threading.get_ident())
        return super()._read_at(place, piece)


def noted(path: Path, data: bytes, before: Callable[[], None] = lambda: None) -> Noted:
    _, file = written([data], digests.LEAST_BLOCK_BYTES)
    path.write_bytes(data)
    found = Noted(path, len(data), digests.LEAST_BLOCK_BYTES, file.digests)
    found.readers, found.before = [], before
    return found


@contextmanager
def interrupted_in(delay_s: float, then: Callable[[], object]) -> Iterator[None]:
    """Want a KeyboardInterrupt of a signal so much later, after whose handler this is called."""

    def interrupt(*_: object) -> None:
        threading.Timer(0.2, then).start()
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, delay_s)
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGALRM, previous)


needs_two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="NotAvailable: a second core"
)


@needs_two_cores
@pytest.mark.parametrize(("size_bytes", "threads"), [(3 << 20, 2), (1 << 20, 1)])
def test_a_large_read_is_shared_by_two_threads(
    tmp_path: Path, size_bytes: int, threads: int
) -> None:
    """A small one is not: the second would wake up too late."""
    data, both = os.urandom(size_bytes), threading.Barrier(threads)
    met = threading.local()

    def meet() -> None:
        if not hasattr(met, "once"):
            met.once = both.wait(20)

    with noted(tmp_path / "shard", data, meet) as file:
        assert file.read() == data
        assert len(set(file.readers)) == threads
        assert len(file.readers) == size_bytes // digests.LEAST_BLOCK_BYTES


@needs_two_cores
def test_an_interrupted_read_leaves_no_thread_that_writes_into_its_memory(tmp_path: Path) -> None:
    """The signal's error comes when the helper is done. Planted: a helper that is slow."""
    data, main, go = os.urandom(3 << 20), threading.get_ident(), threading.Event()

    def before() -> None:
        if threading.get_ident() != main:
            go.wait(20)

    with noted(tmp_path / "shard", data, before) as file:
        with interrupted_in(0.3, go.set):
            file.read()
        at_return = len(file.readers)
        assert len(set(file.readers)) == 2
    assert len(file.readers) == at_return  # closing has waited for the helper


@needs_two_cores
def test_a_helper_that_comes_too_late_reads_nothing(tmp_path: Path) -> None:
    """Planted: one that has not begun when the read is interrupted."""
    data, main, go = os.urandom(3 << 20), threading.get_ident(), threading.Event()
    with noted(tmp_path / "shard", data, lambda: time.sleep(5)) as file:
        assert file._helper is not None
        file._helper.submit(go.wait, 20)
        with interrupted_in(0.3, lambda: None):
            file.read()
        go.set()
    assert set(file.readers) <= {main}


@needs_two_cores
def test_a_helper_that_is_busy_or_cannot_be_is_done_without(tmp_path: Path) -> None:
    """The read is done alone. Planted: one that does something else; one that is shut down."""
    data, go = os.urandom(3 << 20), threading.Event()
    with noted(tmp_path / "shard", data) as file:
        assert file._helper is not None
        file._helper.submit(go.wait, 20)
        assert file.read() == data
        go.set()
        file._helper.shutdown()
        file.seek(0)
        assert file.read() == data
        assert set(file.readers) == {threading.get_ident()}


def test_large_blocks_are_digested_in_pieces() -> None:
    """Blocks and writes larger than a piece come out the same."""
    block_bytes = 3 * digests.PIECE_BYTES + 7
    data = os.urandom(2 * block_bytes + digests.PIECE_BYTES + 1)
    _, file = written([data[:9], data[9:]], block_bytes)
    whole = [data[:block_bytes], data[block_bytes : 2 * block_bytes], data[2 * block_bytes :]]
    assert file.digests == "".join(xxhash.xxh3_128_hexdigest(block) for block in whole)
    with (
        tempfile.TemporaryDirectory() as directory,
        opened(directory, data, block_bytes) as verified,
    ):
        assert verified.read() == data


@on_disk
@given(st.integers(0, 1 << 50))
def test_the_digests_of_a_shard_stay_few(size_bytes: int) -> None:
    """At most 1024 of them, or one a MiB."""
    block_bytes = digests.block_bytes_for(size_bytes)
    assert 1 << 18 <= block_bytes <= 1 << 20
    assert size_bytes <= block_bytes * 1024 or block_bytes == 1 << 20


def big_state() -> dict[str, Any]:
    torch.manual_seed(0)
    sizes = (1, 300, 70_000, 262_144, 500_000, 1_000_000)
    return {str(size): torch.rand(size) for size in sizes} | {"half": torch.rand(10**6).half()}


def read_bytes() -> int:
    """Give how many bytes this process has read by system calls."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_verified_load_reads_each_byte_once(tmp_path: Path) -> None:
    """It costs no second pass, and no second copy in memory of what is large."""
    state = big_state()
    path = alone(tmp_path).save(1, state)
    before_bytes = read_bytes()
    loaded = alone(tmp_path).load(1)
    taken_bytes = read_bytes() - before_bytes
    assert all(torch.equal(loaded[name], state[name]) for name in state)
    size_bytes = (path / "rank-00000.pt").stat().st_size
    most_repeated_bytes = 8 * digests.LEAST_BLOCK_BYTES  # the end, where a zip file has its index
    assert size_bytes <= taken_bytes <= size_bytes + most_repeated_bytes


def test_any_torch_can_load_a_shard(tmp_path: Path) -> None:
    """A shard is what torch.save writes, byte for byte but its own chance, and no more."""
    state = big_state()
    path = alone(tmp_path).save(1, state)
    loaded = torch.load(path / "rank-00000.pt", weights_only=True)
    assert all(torch.equal(loaded[name], state[name]) for name in state)


@pytest.fixture(scope="module")
def saved() -> Iterator[Path]:
    """Save a step that has two blocks."""
    with tempfile.TemporaryDirectory() as directory:
        alone(Path(directory)).save(1, {"a": torch.arange(150_000), "b": [1, "x"]})
        yield Path(directory)


@on_disk
@given(st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_one_flipped_bit_anywhere_in_a_shard_is_found_at_load(
    saved: Path, place: float, bit: int
) -> None:
    """In a tensor, in the pickle, in the padding or in the zip file's index."""
    shard = saved / "step-00000001" / "rank-00000.pt"
    offset = int(place * shard.stat().st_size)
    with shard.open("r+b", buffering=0) as file:
        whole = os.pread(file.fileno(), 1, offset)
        try:
            os.pwrite(file.fileno(), bytes([whole[0] ^ 1 << bit]), offset)
            with pytest.raises(CheckpointCorrupt, match="does not have the digest"):
                alone(saved).load(1)
        finally:
            os.pwrite(file.fileno(), whole, offset)
    assert len(alone(saved).load(1)["a"]) == 150_000


def test_what_was_saved_under_another_format_or_algorithm_is_refused(tmp_path: Path) -> None:
    """The manifests of the first version had BLAKE2b digests; the reason says so."""
    alone(tmp_path).save(1, {"a": 1})
    path = alone(tmp_path).save(2, {"a": 2})
    manifest = path / layout.MANIFEST
    text = manifest.read_text()
    old = '{"format": 1, "step": 2, "attempt": "solo", "shards": [{"name": "rank-00000.pt"'
    manifest.write_text(f'{old}, "size_bytes": 1, "digest": "{"0" * 128}"}}]}}')
    found = alone(tmp_path).latest()
    assert found is not None
    assert found.step == 1
    assert "format 1: want 2" in found.refused[0].reason
    manifest.write_text(text.replace("xxh3-128", "blake2b"))
    found = alone(tmp_path).latest()
    assert found is not None
    assert "digests by 'blake2b': want xxh3-128" in found.refused[0].reason


def test_a_state_that_weights_only_refuses_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    """Otherwise nobody would learn of it before the first resume; nothing is committed."""
    with pytest.raises(ValueError, match=r"pathlib.*weights_only refuses: want tensors"):
        alone(tmp_path).save(1, {"path": Path("x")})
    assert alone(tmp_path).latest() is None
    alone(tmp_path).save(1, {"path": "x"})
    assert names(tmp_path) == ["step-00000001"]


def test_a_whole_shard_that_cannot_be_loaded_is_no_damage(tmp_path: Path) -> None:
    """It is the user's error, not one that a retry or an older checkpoint would mend."""
    saver = alone(tmp_path)
    saver.save(1, {"a": 1})
    saver.save(2, {"path": Path("x")})  # only a manager's first save is checked
    with pytest.raises(CheckpointError, match="as it was saved, and cannot be loaded") as told:
        saver.load(2)
    assert not isinstance(told.value, CheckpointCorrupt)


@on_disk
@given(st.integers(0, 3), st.booleans())
def test_a_shard_shorter_or_longer_than_saved_is_refused(change: int, longer: bool) -> None:  # noqa: FBT001
    """Its size is checked before anything is read."""
    assume(change)
    with tempfile.TemporaryDirectory() as directory:
        path = alone(Path(directory)).save(1, {"a": 1}) / "rank-00000.pt"
        size_bytes = path.stat().st_size
        os.truncate(path, size_bytes + change if longer else size_bytes - change)
        with pytest.raises(CheckpointCorrupt, match=f"want {size_bytes}"):
            alone(Path(directory)).load(1)
