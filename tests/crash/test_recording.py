"""The recording is what the kernel saw: replayed to its end it gives the files that are there."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chaoslab.crash.interference import Fail, Kill, Lie, Tear
from chaoslab.crash.models import Crash
from chaoslab.crash.operations import Acknowledged, Begun, Make, Rename, Sync, SyncAll, Write
from chaoslab.crash.recording import Recording, RecordingFailed, marked, record
from chaoslab.crash.states import Replay


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


def files(root: Path) -> dict[str, object]:
    """Give every path below a directory, as a state has it."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = str(path.readlink())
        else:
            found[name] = None if path.is_dir() else path.read_bytes()
    return found


def replayed(recording: Recording) -> dict[str, object]:
    replay = Replay(recording.operations, recording.start)
    state = replay.state(Crash(after=len(recording.operations)))
    return {path: replay.content(item) for path, item in state.tree}


def everything(root: Path) -> None:
    """Do to a directory all that the recorder knows."""
    (root / "a").mkdir()
    (root / "a/one").write_bytes(b"x" * 5000)
    with (root / "a/one").open("r+b") as file:
        file.seek(100)
        file.write(b"middle")
        file.truncate(3000)
        file.flush()
        os.fsync(file.fileno())
    fd = os.open(root / "two", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.writev(fd, [b"a", b"", b"bc"])
    os.pwrite(fd, b"Z", 0)  # appended all the same
    os.posix_fallocate(fd, 0, 10)
    os.fdatasync(fd)
    os.close(fd)
    os.link(root / "two", root / "also")
    (root / "link").symlink_to("two")
    (root / "a/one").rename(root / "three")
    (root / "old").write_bytes(b"old")
    (root / "three").replace(root / "old")
    (root / "a").rename(root / "b")
    (root / "b/inner").touch()
    shutil.copyfile(root / "old", root / "copy")
    (root / "also").unlink()
    (root / "gone").mkdir()
    (root / "gone").rmdir()
    (root / "two").write_bytes(b"again")
    there, back = os.open(root / "b", os.O_RDONLY), Path.cwd()
    os.chdir(there)
    Path("relative").write_bytes(b"r")
    os.chdir(back)
    os.fsync(there)
    os.close(there)
    os.sync()


def test_a_replay_to_the_end_gives_the_files_that_are_there(root: Path) -> None:
    """Each kind of call, over files that were there before and new ones."""
    (root / "before").mkdir()
    (root / "before/file").write_bytes(b"was here")
    os.link(root / "before/file", root / "second-name")
    recording = record(root, lambda: everything(root))
    assert recording.unseen == ()
    assert replayed(recording) == files(root)
    kinds = [type(operation) for operation in recording.operations]
    assert kinds.count(SyncAll) == 1
    assert kinds.count(Sync) == 3


def test_the_same_save_gives_the_same_recording(tmp_path: Path) -> None:
    """Of one thread: operation for operation, but for the number of the thread."""
    found = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        recording = record(tmp_path / name, lambda name=name: everything(tmp_path / name))  # type: ignore[misc]
        found.append([repr(op).partition(",")[2] for op in recording.operations])
    assert found[0] == found[1]


def save(root: Path, step: int) -> None:
    draft = root / "draft"
    with draft.open("wb", buffering=0) as file:
        file.write(bytes([step]) * 8192)
        os.fsync(file.fileno())
    draft.replace(root / "last")


def saving(root: Path) -> Callable[[], None]:
    return lambda: marked(save, root, [1, 2], root.parent / "marks")


def test_marks_are_in_the_order(root: Path) -> None:
    """The beginning of a save comes before its first call, its return after its last."""
    recording = record(root, saving(root), marks=root.parent / "marks")
    kinds = [type(operation) for operation in recording.operations]
    assert kinds == [Begun, Make, Write, Sync, Rename, Acknowledged] * 2


def test_threads_and_children_are_recorded_too(root: Path) -> None:
    """Four threads and a child process write at once: every write is there, and whose it was."""

    def write(name: str) -> None:
        with (root / name).open("wb", buffering=0) as file:
            for _ in range(50):
                file.write(name.encode() * 100)

    def body() -> None:
        threads = [threading.Thread(target=write, args=(f"thread-{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        if (child := os.fork()) == 0:
            write("child")
            os._exit(0)
        os.waitpid(child, 0)
        for thread in threads:
            thread.join()

    recording = record(root, body)
    assert replayed(recording) == files(root)
    writes = [operation for operation in recording.operations if isinstance(operation, Write)]
    assert len(writes) == 250
    assert len({operation.thread for operation in writes}) == 5


@pytest.mark.parametrize("at", range(8))
def test_a_kill_at_a_call_leaves_what_was_done_before_it(root: Path, at: int) -> None:
    """The directory is that of a replay of the calls before; the status says SIGKILL."""
    recording = record(root, saving(root), interference=Kill(at=at))
    assert recording.was_killed
    assert os.WTERMSIG(recording.status) == signal.SIGKILL
    assert len(recording.calls) == at
    assert replayed(recording) == files(root)


@pytest.mark.parametrize("buffers", [1, 3])
@pytest.mark.parametrize("kept_bytes", [1, 4096, 5000])
def test_a_torn_write_leaves_its_first_bytes(root: Path, buffers: int, kept_bytes: int) -> None:
    """At any byte, of one buffer and of several."""

    def body() -> None:
        fd = os.open(root / "file", os.O_CREAT | os.O_WRONLY)
        pieces = [bytes([n]) * 3000 for n in range(buffers)]
        os.write(fd, b"".join(pieces) * 2) if buffers == 1 else os.writev(fd, pieces)
        (root / "never").touch()

    recording = record(root, body, interference=Tear(at=1, kept_bytes=kept_bytes))
    assert recording.was_killed
    assert len((root / "file").read_bytes()) == kept_bytes
    assert replayed(recording) == files(root)


def test_a_tear_beyond_the_write_is_refused(root: Path) -> None:
    """Nothing would be torn."""
    with pytest.raises(RecordingFailed, match="want 0 < kept_bytes < 8192"):
        record(root, saving(root), interference=Tear(at=1, kept_bytes=8192))


def test_a_call_that_fails_fails_and_did_not_happen(root: Path) -> None:
    """The saver sees the errno; the file is as if nobody had called."""

    def body() -> None:
        try:
            save(root, 1)
        except OSError as error:
            (root.parent / "said").write_text(str(error.errno))

    recording = record(root, body, interference=Fail(at=1, errno=errno.ENOSPC))
    assert (root.parent / "said").read_text() == str(errno.ENOSPC)
    assert (root / "draft").read_bytes() == b""
    assert recording.calls[1].result == -errno.ENOSPC
    assert replayed(recording) == files(root)


def test_a_lie_is_believed(root: Path) -> None:
    """A write that says that it was done, and was not: the saver renames an empty file."""
    recording = record(root, saving(root), interference=Lie(at=1))
    assert recording.status == 0
    assert recording.calls[1].result == 8192
    assert recording.calls[1].operations == ()


def test_what_cannot_be_seen_is_said(root: Path) -> None:
    """A store to a shared mapping is no system call; one that only reads is no store."""

    def body() -> None:
        (root / "mapped").write_bytes(bytes(4096))
        with (root / "mapped").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[0] = 1

    def reads() -> None:
        with (root / "mapped").open("rb") as file:
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ).close()

    assert record(root, body).unseen == ("a shared mapping of mapped",)
    assert record(root, reads).unseen == ()


def test_a_body_that_fails_is_no_recording(root: Path) -> None:
    """Its status is said."""
    with pytest.raises(RecordingFailed, match="ended with status"):
        record(root, lambda: os._exit(3))


def test_a_body_that_does_not_end_is_ended(root: Path) -> None:
    """At its limit, with every process of it."""

    def body() -> None:
        if os.fork() == 0:
            signal.pause()
        (root.parent / "pids").write_text(str(os.getpid()))
        signal.pause()

    with pytest.raises(RecordingFailed, match=r"took more than 0\.3 s"):
        record(root, body, limit_s=0.3)
    pid = int((root.parent / "pids").read_text())
    deadline_s = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_other_directories_are_not_recorded(root: Path) -> None:
    """What is outside leaves no trace; a move out of it is a removal."""

    def body() -> None:
        (root.parent / "outside").write_bytes(b"no")
        (root / "inside").write_bytes(b"yes")
        (root / "inside").rename(root.parent / "moved")

    recording = record(root, body)
    assert replayed(recording) == files(root) == {}
    assert [call.name for call in recording.calls if "rename" in call.name]
