"""Delay distribution tables for netem: inverse cumulative distributions, scaled by 8192.

The kernel draws table[random % size] and delays by delay + jitter * entry / 8192.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist
from typing import Final

NETEM_DIST_SCALE: Final = 8192
"""Source: include/uapi/linux/pkt_sched.h."""

TABLE_NAMES: Final = ("uniform", "normal", "pareto", "paretonormal")

_TABLE_ENTRIES: Final = 4096
_INT16_MAX: Final = 32767
_INT16_MIN: Final = -32768
_PARETO_SHAPE: Final = 3.0


@cache
def table(name: str) -> tuple[int, ...] | None:
    """Return the table called `name` as int16 values; None for uniform, which needs no table.

    Raises:
        KeyError: no such distribution.

    Source: iproute2, netem/normal.c, netem/pareto.c, netem/paretonormal.c. Those step through x and
    keep the last x of each of 16384 buckets, which is the quantile at the bucket's upper edge.
    """
    makers = {"normal": _normal, "pareto": _pareto, "paretonormal": _paretonormal}
    if name == "uniform":
        return None
    return tuple(makers[name](index) for index in range(_TABLE_ENTRIES))


def mean_and_deviation(values: tuple[int, ...] | None) -> tuple[float, float]:
    """Return mean and standard deviation that a table gives, in units of the jitter.

    Uniform (None) is jitter * U(-1, 1): mean 0, deviation 1/sqrt(3).
    """
    if values is None:
        return 0.0, 3**-0.5
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    return mean / NETEM_DIST_SCALE, variance**0.5 / NETEM_DIST_SCALE


def _normal_unclipped(index: int) -> int:
    quantile = NormalDist().inv_cdf((4 * index + 0.5) / (4 * _TABLE_ENTRIES))
    return round(quantile * NETEM_DIST_SCALE)


def _normal(index: int) -> int:
    return _int16(_normal_unclipped(index))


def _pareto(index: int) -> int:
    value = math.pow(1 - index / _TABLE_ENTRIES, -1 / _PARETO_SHAPE) - 1.5
    return min(round(value * 4 / 3 * NETEM_DIST_SCALE), _INT16_MAX)


def _paretonormal(index: int) -> int:
    return _int16(int((_normal_unclipped(index) + 3 * _pareto(index)) / 4))


def _int16(value: int) -> int:
    return max(_INT16_MIN, min(_INT16_MAX, value))
