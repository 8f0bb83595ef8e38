"""Decoding: from a system call of some thread to an operation on the watched directory.

A call is looked at twice: at its beginning, for what it says and what there was, and at its end,
for what it did. Files are told apart by device and inode; each gets a number of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from chaoslab.crash.disk import Disk
from chaoslab.crash.marks import Marks
from chaoslab.crash.operations import (
    ROOT,
    Entry,
    Link,
    Make,
    Operation,
    Remove,
    Rename,
    Resize,
    Sync,
    SyncAll,
    Write,
    Zero,
)
from chaoslab.crash.ptrace import Call, read_memory, read_text, read_vector

_AT_FDCWD: Final = -100
_AT_REMOVEDIR: Final = 0x200
_AT_EMPTY_PATH: Final = 0x1000
_O_TMPFILE: Final = 0o20000000
_RENAME_EXCHANGE: Final = 2
_RWF_DSYNC, _RWF_SYNC, _RWF_APPEND = 2, 4, 16
_KEEP_SIZE, _PUNCH_HOLE, _ZERO_RANGE = 1, 2, 16
_DELETED: Final = " (deleted)"
_POINTER: Final = struct.Struct("PQ")

Finish = Callable[[int], list[Operation]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watched:
    """A call that concerns the watched directory. finish: gives its operations by its result.

    collect: called before `finish`, while the call is under way: reads what it writes.
    write_bytes: what it was asked to write; 0 for no write. place: of the length's argument, which
    may be made smaller; None: it has none (writev).
    """

    finish: Finish
    collect: Callable[[], None] = lambda: None
    write_bytes: int = 0
    place: int | None = None


class Decoder:
    """For one recording. root: what is watched. told: the file that takes marks.

    unseen: what was done that cannot be recorded, in words.
    """

    def __init__(self, root: Path, told: Path | None = None, marks: Marks | None = None) -> None:
        self.root, self._told = root.resolve(), told and str(told.resolve())
        self._marks = marks or Marks()
        self.start = Disk()
        self.unseen: list[str] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self._next = ROOT
        self._device = self.root.stat().st_dev
        self._know(self.root)
        self._list(self.root, ROOT)
        self._decoders: dict[str, Callable[[int, tuple[int, ...]], Watched | None]] = {
            "write": lambda t, a: self._write(t, a[0], [(a[1], a[2])], place=2),
            "pwrite64": lambda t, a: self._write(t, a[0], [(a[1], a[2])], place=2, offset=a[3]),
            "writev": lambda t, a: self._write(t, a[0], _vector(t, a[1], a[2])),
            "pwritev": lambda t, a: self._write(t, a[0], _vector(t, a[1], a[2]), offset=a[3]),
            "pwritev2": lambda t, a: self._write(
                t, a[0], _vector(t, a[1], a[2]), offset=a[3], flags=a[5]
            ),
            "sendfile": lambda t, a: self._copied(t, a[0], 0),
            "copy_file_range": lambda t, a: self._copied(t, a[2], a[3]),
            "splice": lambda t, a: self._copied(t, a[2], a[3]),
            "fsync": lambda t, a: self._sync(t, a[0]),
            "fdatasync": lambda t, a: self._sync(t, a[0]),
            "sync": lambda *_: Watched(finish=lambda _: [SyncAll()]),
            "syncfs": self._syncfs,
            "open": lambda t, a: self._open(t, _AT_FDCWD, a[0], a[1]),
            "creat": lambda t, a: self._open(
                t, _AT_FDCWD, a[0], os.O_CREAT | os.O_WRONLY | os.O_TRUNC
            ),
            "openat": lambda t, a: self._open(t, a[0], a[1], a[2]),
            "openat2": lambda t, a: self._open(
                t, a[0], a[1], struct.unpack("Q", read_memory(t, a[2], 8))[0]
            ),
            "mkdir": lambda t, a: self._make(t, _AT_FDCWD, a[0], is_directory=True),
            "mkdirat": lambda t, a: self._make(t, a[0], a[1], is_directory=True),
            "mknod": lambda t, a: self._make(t, _AT_FDCWD, a[0]),
            "mknodat": lambda t, a: self._make(t, a[0], a[1]),
            "symlink": lambda t, a: self._make(t, _AT_FDCWD, a[1], link=a[0]),
            "symlinkat": lambda t, a: self._make(t, a[1], a[2], link=a[0]),
            "link": lambda t, a: self._link(t, (_AT_FDCWD, a[0]), (_AT_FDCWD, a[1]), 0),
            "linkat": lambda t, a: self._link(t, a[0:2], a[2:4], a[4]),
            "rename": lambda t, a: self._rename(t, (_AT_FDCWD, a[0]), (_AT_FDCWD, a[1]), 0),
            "renameat": lambda t, a: self._rename(t, a[0:2], a[2:4], 0),
            "renameat2": lambda t, a: self._rename(t, a[0:2], a[2:4], a[4]),
            "unlink": lambda t, a: self._remove(t, _AT_FDCWD, a[0]),
            "rmdir": lambda t, a: self._remove(t, _AT_FDCWD, a[0]),
            "unlinkat": lambda t, a: self._remove(t, a[0], a[1]),
            "truncate": lambda t, a: self._truncate(self._path(t, _AT_FDCWD, a[0]), a[1]),
            "ftruncate": lambda t, a: self._truncate(Path(f"/proc/{t}/fd/{a[0]}"), a[1]),
            "fallocate": self._fallocate,
            "mmap": self._map,
            "ioctl": lambda t, a: self._note_clone(t, a[0]),
            "io_uring_setup": lambda *_: self._note("io_uring, whose writes are not system calls"),
        }

    def begin(self, thread: int, name: str, call: Call) -> Watched | None:
        """Look at a call at its beginning; None when it does not concern the watched directory.

        Raises: OSError when it names what is not there, so that the call will fail itself.
        """
        return self._decoders[name](thread, call.arguments)

    def _know(self, path: Path) -> int:
        """Give what has just come to be at a path a number of its own."""
        status = path.lstat()
        number, self._next = self._next, self._next + 1
        self._numbers[status.st_dev, status.st_ino] = number
        return number

    def _list(self, directory: Path, number: int) -> None:
        """Take in what is there before the recording begins."""
        for path in sorted(directory.iterdir()):
            child = self._child(path)
            if path.is_symlink():
                self.start.links[child] = str(path.readlink())
            elif path.is_dir():
                self.start.directories[child] = {}
                self._list(path, child)
            else:
                self.start.files.setdefault(child, path.read_bytes())
            self.start.directories[number][path.name] = child

    def _child(self, path: Path) -> int:
        status = path.lstat()
        known = self._numbers.get((status.st_dev, status.st_ino))
        return self._know(path) if known is None else known  # a second name of a file

    def _note(self, what: str) -> Watched | None:
        """Note what cannot be recorded; there is nothing to finish."""
        if what not in self.unseen:
            self.unseen.append(what)
        return None

    def _is_inside(self, path: Path) -> bool:
        return path == self.root or path.is_relative_to(self.root)

    def _path(self, thread: int, directory: int, address: int) -> Path:
        """Resolve a path as the thread's call does, but for its last name."""
        given = Path(read_text(thread, address))
        directory = directory - (1 << 32) if directory & (1 << 31) else directory
        if not given.is_absolute():
            base = "cwd" if directory & 0xFFFFFFFF == _AT_FDCWD & 0xFFFFFFFF else f"fd/{directory}"
            given = Path(f"/proc/{thread}/{base}").readlink() / given
        given = Path(os.path.normpath(given))
        return given.parent.resolve() / given.name

    def _entry(self, path: Path) -> Entry:
        status = path.parent.stat()
        return Entry(directory=self._numbers[status.st_dev, status.st_ino], name=path.name)

    def _number(self, path: Path) -> int | None:
        """Give the number of the file at a path; None for one that is not watched."""
        status = path.stat()
        return self._numbers.get((status.st_dev, status.st_ino))

    def _open(self, thread: int, directory: int, address: int, flags: int) -> Watched | None:
        path = self._path(thread, directory, address)
        if not self._is_inside(path):
            return None
        if flags & _O_TMPFILE == _O_TMPFILE:
            return self._note("a file without a name (O_TMPFILE)")
        if path.exists():
            number, size_bytes = self._number(path), path.stat().st_size
            if not flags & os.O_TRUNC or number is None or size_bytes == 0:
                return None
            return Watched(finish=lambda _: [Resize(file=number, size_bytes=0)])
        if not flags & os.O_CREAT:
            return None
        return Watched(finish=lambda _: [Make(at=self._entry(path), file=self._know(path))])

    def _make(
        self,
        thread: int,
        directory: int,
        address: int,
        *,
        is_directory: bool = False,
        link: int | None = None,
    ) -> Watched | None:
        path = self._path(thread, directory, address)
        if not self._is_inside(path):
            return None
        target = None if link is None else read_text(thread, link)

        def finish(_: int) -> list[Operation]:
            at, file = self._entry(path), self._know(path)
            return [Make(at=at, file=file, is_directory=is_directory, link_target=target)]

        return Watched(finish=finish)

    def _link(
        self, thread: int, source: tuple[int, ...], target: tuple[int, ...], flags: int
    ) -> Watched | None:
        path = self._path(thread, *target)
        if not self._is_inside(path):
            return None
        number = None
        if not flags & _AT_EMPTY_PATH:
            number = self._number(self._path(thread, *source))
        if number is None:
            return self._note(f"a link at {path.name} to a file that is not watched")
        at = self._entry(path)
        return Watched(finish=lambda _: [Link(at=at, file=number)])

    def _rename(
        self, thread: int, source: tuple[int, ...], target: tuple[int, ...], flags: int
    ) -> Watched | None:
        old, new = self._path(thread, *source), self._path(thread, *target)
        if not self._is_inside(old) and not self._is_inside(new):
            return None
        if not self._is_inside(new):
            gone = self._entry(old)
            return Watched(finish=lambda _: [Remove(at=gone)])
        if not self._is_inside(old):
            return self._note(f"a rename of {new.name} from outside the watched directory")
        at, to = self._entry(old), self._entry(new)
        is_exchange = bool(flags & _RENAME_EXCHANGE)
        if at == to or (new.exists() and old.exists() and new.samefile(old)):
            return None
        return Watched(finish=lambda _: [Rename(at=at, to=to, is_exchange=is_exchange)])

    def _remove(self, thread: int, directory: int, address: int) -> Watched | None:
        path = self._path(thread, directory, address)
        if not self._is_inside(path):
            return None
        at = self._entry(path)
        return Watched(finish=lambda _: [Remove(at=at)])

    def _write(
        self,
        thread: int,
        fd: int,
        vector: list[tuple[int, int]],
        *,
        place: int | None = None,
        offset: int | None = None,
        flags: int = 0,
    ) -> Watched | None:
        file = f"/proc/{thread}/fd/{fd}"
        is_told = self._told is not None and os.readlink(file) == self._told  # noqa: PTH115  often
        status = os.stat(file)  # noqa: PTH116  as above
        number = self._numbers.get((status.st_dev, status.st_ino))
        if number is None and not is_told:
            return None
        position, opened = _position(thread, fd)
        if opened & os.O_APPEND or flags & _RWF_APPEND:
            offset = status.st_size
        begin = position if offset is None or offset == (1 << 64) - 1 else offset
        # O_SYNC has the bit of O_DSYNC in it.
        is_durable = bool(opened & os.O_DSYNC or flags & (_RWF_DSYNC | _RWF_SYNC))
        data = bytearray()

        def collect() -> None:
            nonlocal data
            with contextlib.suppress(OSError):  # no such memory: the call fails as well
                data = read_vector(thread, vector)

        def finish(done: int) -> list[Operation]:
            kept = data if done == len(data) else data[:done]
            if number is None:
                return self._marks.read(bytes(kept))
            return [Write(file=number, offset=begin, data=kept, is_durable=is_durable)]

        length = sum(length for _, length in vector)
        return Watched(finish=finish, collect=collect, write_bytes=length, place=place)

    def _copied(self, thread: int, fd: int, offset_at: int) -> Watched | None:
        """Bytes that the kernel moves by itself: read back afterwards."""
        file = Path(f"/proc/{thread}/fd/{fd}")
        number = self._number(file)
        if number is None:
            return None
        begin = _position(thread, fd)[0]
        if offset_at:
            begin = struct.unpack("q", read_memory(thread, offset_at, 8))[0]
        held = os.open(f"/proc/{thread}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)

        def finish(done: int) -> list[Operation]:
            try:
                data = os.pread(held, done, begin)
            finally:
                os.close(held)
            return [Write(file=number, offset=begin, data=data)]

        return Watched(finish=finish)

    def _sync(self, thread: int, fd: int) -> Watched | None:
        number = self._number(Path(f"/proc/{thread}/fd/{fd}"))
        return None if number is None else Watched(finish=lambda _: [Sync(file=number)])

    def _syncfs(self, thread: int, arguments: tuple[int, ...]) -> Watched | None:
        is_ours = Path(f"/proc/{thread}/fd/{arguments[0]}").stat().st_dev == self._device
        return Watched(finish=lambda _: [SyncAll()]) if is_ours else None

    def _truncate(self, file: Path, size_bytes: int) -> Watched | None:
        number = self._number(file)
        if number is None:
            return None
        return Watched(finish=lambda _: [Resize(file=number, size_bytes=size_bytes)])

    def _fallocate(self, thread: int, arguments: tuple[int, ...]) -> Watched | None:
        fd, mode, offset, length = arguments[:4]
        file = Path(f"/proc/{thread}/fd/{fd}")
        number = self._number(file)
        if number is None:
            return None
        size_bytes, end = file.stat().st_size, offset + length
        found: list[Operation] = []
        if mode & (_PUNCH_HOLE | _ZERO_RANGE):
            found.append(Zero(file=number, offset=offset, length=length))
        elif mode & ~_KEEP_SIZE:
            return self._note(f"fallocate with mode {mode:#x}")
        if not mode & _KEEP_SIZE and end > size_bytes:
            found.append(Resize(file=number, size_bytes=end))
        return Watched(finish=lambda _: found)

    def _map(self, thread: int, arguments: tuple[int, ...]) -> Watched | None:
        """Note a shared mapping of a file that can be written: stores to it are no system calls."""
        fd = arguments[4] & 0xFFFFFFFF
        if fd == (1 << 32) - 1:
            return None
        is_written = _position(thread, fd)[1] & os.O_ACCMODE != os.O_RDONLY
        if is_written and self._number(Path(f"/proc/{thread}/fd/{fd}")) is not None:
            self._note(f"a shared mapping of {_name_of(thread, fd)}")
        return None

    def _note_clone(self, thread: int, fd: int) -> Watched | None:
        if self._number(Path(f"/proc/{thread}/fd/{fd}")) is not None:
            self._note(f"a clone of bytes into {_name_of(thread, fd)}")
        return None


def _name_of(thread: int, fd: int) -> str:
    return str(Path(f"/proc/{thread}/fd/{fd}").readlink()).removesuffix(_DELETED).rpartition("/")[2]


def _position(thread: int, fd: int) -> tuple[int, int]:
    """Give a descriptor's place in its file and its flags. Source: proc(5), fdinfo."""
    info = os.open(f"/proc/{thread}/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _, position, _, flags, *_ = os.read(info, 256).split()
    finally:
        os.close(info)
    return int(position), int(flags, 8)


def _vector(thread: int, address: int, count: int) -> list[tuple[int, int]]:
    """Read where a call's buffers are, and how long."""
    return list(_POINTER.iter_unpack(read_memory(thread, address, _POINTER.size * count)))
