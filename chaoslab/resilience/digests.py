"""Digests: a file's XXH3-128 digests, block by block, made while writing and checked while reading.

A digest of each block, and not one of the whole file, so that a reader can check a block before
anybody sees a byte of it, in any order, without reading anything twice. XXH3 finds damage; it is
no proof against somebody who forges a checkpoint on purpose.

Source: xxhash.com, XXH3 (128-bit); AVX2 or SSE2, faster than memory.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self

import xxhash

from chaoslab.resilience.errors import CheckpointCorrupt

ALGORITHM: Final = "xxh3-128"
DIGEST_HEX: Final = 32
"""Characters of one digest in hexadecimal."""

LEAST_BLOCK_BYTES: Final = 256 << 10
MOST_BLOCK_BYTES: Final = 1 << 20
FEW_BLOCKS: Final = 1024
"""Small blocks until there are so many, then larger ones: 33 kB of digests for a shard of up to
1 GB, 31 kB a GB beyond. A block that is only partly wanted is copied, which costs little while it
stays in a core's cache.
"""

PIECE_BYTES: Final = 256 << 10
"""Digested and copied in pieces that stay in a core's own cache in between."""

SHARED_BYTES: Final = 2 << 20
"""From here on two threads share a read: less is read by one before the other has woken up."""


def block_bytes_for(size_bytes: int) -> int:
    """Choose the block size of a file of about this size: 256 kiB, 512 kiB or 1 MiB."""
    block_bytes = LEAST_BLOCK_BYTES
    while block_bytes < MOST_BLOCK_BYTES and block_bytes * FEW_BLOCKS < size_bytes:
        block_bytes *= 2
    return block_bytes


def digest_of_text(text: str) -> str:
    """Give the digest (hex) of a text."""
    return xxhash.xxh3_128_hexdigest(text.encode())


class DigestingFile:
    """What torch.save writes to: passes bytes on and folds them into the digests of their blocks.

    check: called once a block; what it raises ends the writing. error: what ended it, since torch
    raises a RuntimeError of its own in that case.
    """

    def __init__(
        self, file: Any, *, block_bytes: int, check: Callable[[], None] = lambda: None
    ) -> None:
        self._file, self._check = file, check
        self.block_bytes, self.size_bytes = block_bytes, 0
        self.error: Exception | None = None
        self._sum, self._filled_bytes = xxhash.xxh3_128(), 0
        self._digests: list[str] = []

    def write(self, data: Any) -> int:
        """Write all of the data. Raises: what the file or the check raises."""
        view = memoryview(data).cast("B")
        try:
            for start in range(0, len(view), PIECE_BYTES):
                piece = view[start : start + PIECE_BYTES]
                self._fold(piece)
                self._file.write(piece)
        except Exception as error:
            self.error = error
            raise
        self.size_bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()

    @property
    def digests(self) -> str:
        """Give the blocks' digests (hex), one after the other, of what was written."""
        last = [self._sum.hexdigest()] if self._filled_bytes else []
        return "".join(self._digests + last)

    def _fold(self, piece: memoryview) -> None:
        while piece:
            part = piece[: self.block_bytes - self._filled_bytes]
            self._sum.update(part)
            self._filled_bytes += len(part)
            piece = piece[len(part) :]
            if self._filled_bytes == self.block_bytes:
                self._digests.append(self._sum.hexdigest())
                self._sum.reset()
                self._filled_bytes = 0
                self._check()


class VerifiedFile:
    """What torch.load reads from: gives no byte of a block whose digest is not the saved one.

    A whole block goes straight to where it is wanted, of any other the wanted part is copied, so
    that a load reads each byte once and copies few. A helper thread, where there is a core for it,
    reads and checks half of what is wanted at once; it touches no memory after the call. A damaged
    block reads as the file's end, and `damage` says which: an exception does not pass through
    torch's reader unharmed.
    """

    def __init__(
        self,
        path: Path,
        size_bytes: int,
        block_bytes: int,
        digests: str,
        *,
        shared_bytes: int = SHARED_BYTES,
    ) -> None:
        """Open the file. shared_bytes: the least that two threads share. Raises: OSError."""
        self._path, self._size_bytes, self._block_bytes = path, size_bytes, block_bytes
        self._digests, self._place = digests, 0
        self.damage: str | None = None
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._unseen = set(range(-(-size_bytes // block_bytes)))
        self._scratch, self._held = bytearray(min(block_bytes, size_bytes)), -1
        has_core = len(os.sched_getaffinity(0)) > 1
        self._helper = ThreadPoolExecutor(1, "checkpoint reader") if has_core else None
        self._shared_bytes = shared_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        try:
            if self._helper is not None:
                self._helper.shutdown()
        finally:
            os.close(self._fd)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move, as a file does."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size_bytes}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        """Give the place."""
        return self._place

    def read(self, size_bytes: int = -1) -> bytes:
        """Read up to so many bytes, to the end when negative."""
        left_bytes = max(0, self._size_bytes - self._place)
        data = bytearray(left_bytes if size_bytes < 0 else min(size_bytes, left_bytes))
        return bytes(memoryview(data)[: self.readinto(data)])

    def readinto(self, target: Any) -> int:
        """Fill the target; 0 at the end, and when a block that is wanted is damaged."""
        view = memoryview(target).cast("B")
        view = view[: max(0, self._size_bytes - self._place)]
        done = 0
        while done < len(view):
            index, start = divmod(self._place + done, self._block_bytes)
            length = self._length(index)
            if start == 0 and len(view) - done >= length:
                taken = self._whole(index, len(view) - done)
                got = self._fetch_all(index, view[done : done + taken])
            else:
                got = self._hold(index)
                taken = min(length - start, len(view) - done)
                if got:
                    view[done : done + taken] = memoryview(self._scratch)[start : start + taken]
            if not got:
                return 0
            done += taken
        self._place += done
        return done

    def verify_rest(self) -> None:
        """Read what nobody has read yet. Raises: CheckpointCorrupt; OSError."""
        while self._unseen and self.damage is None:
            self._hold(min(self._unseen))
        if self.damage is not None:
            raise CheckpointCorrupt(self.damage)

    def _whole(self, index: int, wanted_bytes: int) -> int:
        """Give how many of the bytes wanted from this block on are whole blocks."""
        if index * self._block_bytes + wanted_bytes == self._size_bytes:
            return wanted_bytes  # the last block of the file is shorter
        return wanted_bytes - wanted_bytes % self._block_bytes

    def _fetch_all(self, index: int, blocks: memoryview) -> bool:
        """Read whole blocks into this memory and tell whether all are what was saved."""
        if self._helper is None or len(blocks) < self._shared_bytes:
            return self._fetch_each(index, blocks)
        half = len(blocks) // self._block_bytes // 2
        later = blocks[half * self._block_bytes :]
        share = _Share(functools.partial(self._fetch_each, index + half, later))
        interrupted: BaseException | None = None
        try:
            self._hand_over(share)
            got = self._fetch_each(index, blocks[: half * self._block_bytes]) and share.read()
        finally:
            while True:  # the memory is torch's, and may be gone after this call
                try:
                    share.end()
                    break
                except BaseException as error:  # noqa: BLE001 - a signal's, raised below
                    interrupted = error
        if interrupted is not None:
            raise interrupted
        return got

    def _hand_over(self, share: _Share) -> None:
        """Let the helper read this share; where there can be no thread, nobody else does."""
        if self._helper is not None:
            try:
                self._helper.submit(share.read)
            except RuntimeError:
                self._helper = None

    def _fetch_each(self, index: int, blocks: memoryview) -> bool:
        size = self._block_bytes
        return all(
            self._fetch(index + place // size, blocks[place : place + size])
            for place in range(0, len(blocks), size)
        )

    def _length(self, index: int) -> int:
        return min(self._block_bytes, self._size_bytes - index * self._block_bytes)

    def _hold(self, index: int) -> bool:
        """Bring a block into the scratch memory."""
        if self._held != index:
            self._held = -1
            if not self._fetch(index, memoryview(self._scratch)[: self._length(index)]):
                return False
            self._held = index
        return True

    def _fetch(self, index: int, block: memoryview) -> bool:
        """Read a whole block into this memory and tell whether it is what was saved."""
        begin, done, total = index * self._block_bytes, 0, xxhash.xxh3_128()
        while done < len(block):
            piece = block[done : done + PIECE_BYTES]
            got = self._read_at(begin + done, piece)
            if got == 0:
                break
            total.update(piece[:got])
            done += got
        if total.hexdigest() != self._digests[DIGEST_HEX * index :][:DIGEST_HEX]:
            self.damage = self.damage or (
                f"{self._path.parent}: {self._path.name} does not have the digest it was saved "
                f"with (bytes {begin} to {begin + len(block)})"
            )
            return False
        self._unseen.discard(index)
        return True

    def _read_at(self, place: int, piece: memoryview) -> int:
        try:
            return os.preadv(self._fd, [piece], place)
        except OSError as error:
            self.damage = self.damage or f"{self._path}: cannot be read: {error}"
            return 0


class _Share:
    """Part of a read: whoever comes first reads it, and nobody once it is over."""

    def __init__(self, work: Callable[[], bool]) -> None:
        self._work, self._lock = work, threading.Lock()
        self._got: bool | None = None
        self._is_over = False

    def read(self) -> bool:
        """Read it, or wait for who does; tell whether it is what was saved."""
        with self._lock:
            if self._got is None and not self._is_over:
                self._got = self._work()
        return self._got is True

    def end(self) -> None:
        """Let nobody begin to read it, and wait for who has."""
        self._is_over = True
        with self._lock:
            pass
