"""A small character-level language model, trained with DDP on the source of Python's library.

An ordinary training script that survives lost peers, cuts and restarts by way of
`chaoslab.resilience`. It reads RANK, WORLD_SIZE, CHAOSLAB_STORE (host:port) and
CHAOSLAB_CHECKPOINTS (a directory) from the environment.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from chaoslab import probe
from chaoslab.resilience.backoff import Backoff
from chaoslab.resilience.checkpoint import AtomicCheckpointManager
from chaoslab.resilience.client import StoreClient
from chaoslab.resilience.errors import CircuitOpen
from chaoslab.resilience.limits import Limits
from chaoslab.resilience.runner import FaultTolerantRunner
from chaoslab.resilience.state import PER_RANK, digest, random_states
from chaoslab.resilience.store import parse_address

FILES = ("ast.py", "bisect.py", "copy.py", "heapq.py", "inspect.py", "shutil.py", "textwrap.py")
MAX_CHARACTERS = 200_000
VOCABULARY = 128
BLOCK = 32
WIDTH = 96
LAYERS = 2
HEADS = 4
DROPOUT = 0.1
LEARNING_RATE = 3e-3


def read_text() -> bytes:
    """Give the training text: a fixed list of the standard library's files, cut to size."""
    library = Path(sysconfig.get_path("stdlib"))
    return b"".join((library / name).read_bytes() for name in FILES)[:MAX_CHARACTERS]


def encode(text: bytes) -> torch.Tensor:
    """Give the text as 7-bit codes; what is not ASCII becomes 0."""
    codes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return torch.where(codes < VOCABULARY, codes, 0)


class RunnerMaker(Protocol):
    """What builds the runner of a rank."""

    def __call__(
        self, options: argparse.Namespace, *, rank: int, world_size: int
    ) -> FaultTolerantRunner:
        """Build it."""


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, time, width) to the same shape."""
        batch, length, _ = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH)))
        mapped: torch.Tensor = self.down(functional.gelu(self.up(self.norm2(x))))
        summed: torch.Tensor = x + self.dropout(mapped)
        return summed


class CharacterModel(nn.Module):
    """Predicts each next character: about 255 thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Map codes (batch, time) to logits (batch, time, vocabulary)."""
        x = self.characters(codes) + self.places.weight[: codes.shape[1]]
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits


class CharacterTask:
    """The training task: model, optimizer, schedule, random states, sample order."""

    def __init__(self, options: argparse.Namespace, *, rank: int, world_size: int) -> None:
        self.options, self.rank, self.world_size = options, rank, world_size
        self.text = encode(read_text())
        self.ddp: DistributedDataParallel | None = None
        self.reset()

    def reset(self) -> None:
        """Go back to before the first step: the same model everywhere, own dropout per rank."""
        torch.manual_seed(self.options.seed)
        self.model = CharacterModel()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, fused=True)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, T_max=self.options.steps
        )
        torch.manual_seed(self.options.seed * 1000 + self.rank)
        random.seed(self.options.seed * 1000 + self.rank)
        np.random.seed(self.options.seed * 1000 + self.rank)  # noqa: NPY002  it is saved, too
        self.sample_order = ""

    def attach(self) -> None:
        """Wrap the model in DDP.

        find_unused_parameters keeps DDP from rebuilding its buckets after the first iteration,
        which would sum in another order: a resumed run would not be bit-identical.
        """
        self.ddp = DistributedDataParallel(self.model, find_unused_parameters=True)

    def detach(self) -> None:
        """Drop DDP."""
        if self.ddp is not None:
            time.sleep(self.options.detach_floor_s)
        self.ddp = None

    def step(self, step: int) -> float:
        """Do one step; which samples it sees depends on seed, step and rank alone."""
        start_s = time.monotonic()
        codes = self.batch(step)
        logits = (self.ddp or self.model)(codes[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), codes[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.schedule.step()
        time.sleep(max(0.0, start_s + self.options.step_floor_s - time.monotonic()))
        return float(loss.detach())

    def batch(self, step: int) -> torch.Tensor:
        """Draw this rank's samples, (batch, BLOCK + 1) codes, and note their order."""
        generator = torch.Generator().manual_seed(self.options.seed * 1_000_003 + step)
        size = self.options.batch_size
        starts = torch.randint(
            len(self.text) - BLOCK - 1, (self.world_size * size,), generator=generator
        )
        mine = starts[self.rank * size : (self.rank + 1) * size].tolist()
        told = f"{self.sample_order} {step} {mine}".encode()
        self.sample_order = hashlib.sha256(told).hexdigest()
        return torch.stack([self.text[start : start + BLOCK + 1] for start in mine])

    def state_dict(self) -> dict[str, Any]:
        """Give everything a resumed run needs, but the random states."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            PER_RANK: {"sample_order": self.sample_order},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        time.sleep(self.options.restore_floor_s)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if PER_RANK in state:  # else it is from a job of another size
            self.sample_order = state[PER_RANK]["sample_order"]

    def tell_result(self) -> None:
        """Emit the digests by which a run is compared with its twin."""
        probe.emit(
            "result",
            step=self.options.steps,
            parameters=digest(self.model.state_dict()),
            optimizer=digest([self.optimizer.state_dict(), self.schedule.state_dict()]),
            random_state=digest(random_states()),
            sample_order=self.sample_order,
        )


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=2, help="samples per rank and step")
    parser.add_argument("--step-floor-s", type=float, default=0.0, help="no step is shorter")
    parser.add_argument("--restore-floor-s", type=float, default=0.0, help="no restore is shorter")
    parser.add_argument("--detach-floor-s", type=float, default=0.0, help="no teardown is shorter")
    parser.add_argument("--timeout-s", type=float, default=5.0, help="of each collective")
    parser.add_argument(
        "--patience-s", type=float, default=20.0, help="wait for absent ranks until giving up"
    )
    parser.add_argument(
        "--attempts", type=int, default=10, help="failures in a row until giving up"
    )
    parser.add_argument(
        "--backoff-s", type=float, help="range of the first wait after a failure (by ranks)"
    )
    parser.add_argument(
        "--any-world-size", action="store_true", help="go on from another number of ranks' state"
    )
    parser.add_argument("--keep", type=int, default=3, help="checkpoints that stay")
    return parser


def make_runner(options: argparse.Namespace, *, rank: int, world_size: int) -> FaultTolerantRunner:
    """Build the runner from the options and the environment."""
    host, port = parse_address(os.environ["CHAOSLAB_STORE"])
    backoff = Backoff.for_world(world_size, rank=rank)
    if options.backoff_s is not None:
        backoff = Backoff(base_s=options.backoff_s, cap_s=4 * options.backoff_s, seed=rank)
    return FaultTolerantRunner(
        client=StoreClient(
            host,
            port,
            timeout_s=options.timeout_s,
            backoff=Backoff.for_world(world_size, rank=rank),
        ),
        backoff=backoff,
        rank=rank,
        world_size=world_size,
        checkpoints=AtomicCheckpointManager(
            os.environ["CHAOSLAB_CHECKPOINTS"],
            rank=rank,
            world_size=world_size,
            keep=options.keep,
            deadline_s=options.timeout_s,  # a lost peer is noticed here as soon as in a collective
        ),
        save_every_steps=options.save_every,
        limits=Limits(
            timeout_s=options.timeout_s, patience_s=options.patience_s, attempts=options.attempts
        ),
        incarnation=int(os.environ.get("CHAOSLAB_INCARNATION") or 0),
        any_world_size=options.any_world_size,
    )


def main(make_runner: RunnerMaker = make_runner) -> int:
    """Train; give the exit status."""
    torch.set_num_threads(1)  # before any work: sums in one order, and ranks share few cores
    options = make_parser().parse_args()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    status = 1
    try:
        task = CharacterTask(options, rank=rank, world_size=world_size)
        make_runner(options, rank=rank, world_size=world_size).run(task, steps=options.steps)
        task.tell_result()
        status = 0
    except CircuitOpen as gave_up:  # the runner has said why
        status = int(gave_up.code or 1)
    finally:
        probe.emit("rank_exited", status=status)
    return status


if __name__ == "__main__":
    sys.exit(main())
