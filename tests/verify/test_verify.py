"""Damage is found, as far as a format allows; what is whole is called so."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from chaoslab.resilience import AtomicCheckpointManager
from chaoslab.verify import Proof, check

CHAOSLAB = Path(sys.executable).with_name("chaoslab")
NUMBERS = 5000


def state(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: torch.rand(NUMBERS, generator=generator) for name in ("weight", "moment")}


def ours(root: Path, step: int) -> Path:
    with AtomicCheckpointManager(root, rank=0, world_size=1, keep=5) as manager:
        return manager.save(step, state(step))


def archive(root: Path, step: int) -> Path:
    path = root / f"ckpt-{step}.pt"
    torch.save(state(step), path)
    return path


def dcp(root: Path, step: int) -> Path:
    path = root / f"dcp-{step}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        state_dict_saver.save(state(step), storage_writer=FileSystemWriter(path), no_dist=True)
    return path


def safetensors(root: Path, step: int) -> Path:
    path, data = root / f"model-{step}.safetensors", state(step)
    header: dict[str, object] = {"__metadata__": {"step": str(step)}}
    end, body = 0, b""
    for name, tensor in data.items():
        piece = tensor.numpy().tobytes()
        offsets = [end, end + len(piece)]
        header[name] = {"dtype": "F32", "shape": [NUMBERS], "data_offsets": offsets}
        end, body = offsets[1], body + piece
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def proof(path: Path) -> Proof:
    (found,) = check(path)
    return found.proof


def largest(path: Path) -> Path:
    """Give the file that holds the tensors."""
    if path.is_file():
        return path
    return max(path.iterdir(), key=lambda one: one.stat().st_size)


def flip_a_bit(path: Path) -> None:
    file = largest(path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def make_a_hole(path: Path) -> None:
    with largest(path).open("r+b") as file:
        file.seek(8192)
        file.write(bytes(4096))


def cut_the_end(path: Path) -> None:
    file = largest(path)
    os.truncate(file, file.stat().st_size - 100)


def lose_the_file(path: Path) -> None:
    largest(path).unlink()


SAVERS = {"ours": ours, "torch.save": archive, "dcp": dcp, "safetensors": safetensors}
WHOLE = {"ours": Proof.OK, "torch.save": Proof.OK, "dcp": Proof.UNPROVEN,
         "safetensors": Proof.UNPROVEN}  # fmt: skip
DAMAGE = [flip_a_bit, make_a_hole, cut_the_end]
HAS_NO_CHECKSUM = {("safetensors", flip_a_bit), ("safetensors", make_a_hole)}


@pytest.mark.parametrize("name", SAVERS)
def test_what_is_whole_is_called_so(tmp_path: Path, name: str) -> None:
    """Proven where the format has a checksum of every byte and says what belongs together."""
    assert proof(SAVERS[name](tmp_path, 1)) is WHOLE[name]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", SAVERS)
def test_damage_is_found_where_the_format_allows_it(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    """A flipped bit, a hole of zeros, an end that is missing."""
    path = SAVERS[name](tmp_path, 1)
    damage(path)
    expected = WHOLE[name] if (name, damage) in HAS_NO_CHECKSUM else Proof.DAMAGED
    assert proof(path) is expected


@pytest.mark.parametrize("name", ["ours", "dcp"])
def test_a_missing_shard_is_found(tmp_path: Path, name: str) -> None:
    """One that the manifest, or the metadata, names."""
    path = SAVERS[name](tmp_path, 1)
    lose_the_file(path)
    assert proof(path) is Proof.DAMAGED


def test_shards_of_mixed_steps_and_a_swapped_manifest_are_found_in_ours(tmp_path: Path) -> None:
    """The manifest has the digests of its own shards, its own, and its step."""
    one, two = ours(tmp_path, 1), ours(tmp_path, 2)
    shutil.copy(one / "rank-00000.pt", two / "rank-00000.pt")
    assert proof(two) is Proof.DAMAGED
    three = ours(tmp_path, 3)
    shutil.copy(one / "manifest.json", three / "manifest.json")
    assert proof(three) is Proof.DAMAGED
    assert proof(one) is Proof.OK


@pytest.mark.filterwarnings("ignore:.*checkpoints are refused:RuntimeWarning")
@pytest.mark.parametrize("damage", [*DAMAGE, lose_the_file])
def test_the_manager_goes_back_to_the_one_before(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """What is damaged is refused, with its reason, by whoever restores."""
    ours(tmp_path, 1)
    damage(ours(tmp_path, 2))
    with AtomicCheckpointManager(tmp_path, rank=0, world_size=1) as manager:
        found = manager.latest()
        assert found is not None
        assert found.step == 1
        assert found.refused[0].reason
        assert torch.equal(manager.load(1)["weight"], state(1)["weight"])


def test_any_flipped_bit_of_an_archive_is_found_or_changes_nothing(tmp_path: Path) -> None:
    """What lies between the records belongs to none: torch does not read it."""
    path, chooser = archive(tmp_path, 1), random.Random(7)
    whole, wanted = path.read_bytes(), state(1)
    found = 0
    for _ in range(150):
        data = bytearray(whole)
        data[chooser.randrange(len(data))] ^= 1 << chooser.randrange(8)
        path.write_bytes(data)
        if proof(path) is Proof.DAMAGED:
            found += 1
            continue
        with contextlib.suppress(RuntimeError):  # torch refuses what zipfile does not mind
            loaded = torch.load(path, weights_only=True)
            assert all(torch.equal(loaded[name], wanted[name]) for name in wanted)
    assert found > 100


def test_a_stale_pointer_is_found(tmp_path: Path) -> None:
    """It names the newest, an older one, or none."""
    for step in (9, 10):
        archive_in = tmp_path / f"global_step{step}"
        archive_in.mkdir()
        archive(archive_in, step)
    pointer = tmp_path / "latest"
    for named, expected in (
        ("global_step10", Proof.OK),
        ("global_step9", Proof.DAMAGED),
        ("global_step11", Proof.DAMAGED),
        ("", Proof.DAMAGED),
    ):
        pointer.write_text(f"{named}\n")
        (found,) = (one for one in check(tmp_path) if one.format == "pointer")
        assert found.proof is expected, named


def test_metadata_runs_nothing_that_it_names(tmp_path: Path) -> None:
    """A pickle that would make a file on loading makes none."""
    path = dcp(tmp_path, 1)
    target = tmp_path / "made"
    (path / ".metadata").write_bytes(b"cos\nmknod\n(S'" + str(target).encode() + b"'\ntR.")
    assert proof(path) is Proof.DAMAGED
    assert not target.exists()


def ran(*paths: Path) -> subprocess.CompletedProcess[str]:
    argv = [str(CHAOSLAB), "verify", *map(str, paths)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_says_what_is_proven_and_its_status_what_is_not(tmp_path: Path) -> None:
    """0 all proven, 1 damage, 2 nothing to check, 3 not all can be proven."""
    whole, other = ours(tmp_path / "a", 1), safetensors(tmp_path, 1)
    (tmp_path / "empty").mkdir()
    done = ran(whole)
    assert (done.returncode, done.stdout.split()[0]) == (0, "OK"), done.stderr
    assert ran(whole, other).returncode == 3
    assert ran(tmp_path / "empty").returncode == ran(tmp_path / "none").returncode == 2
    flip_a_bit(whole)
    done = ran(tmp_path)
    assert done.returncode == 1
    assert sorted(line.split()[0] for line in done.stdout.splitlines()) == ["DAMAGED", "UNPROVEN"]
