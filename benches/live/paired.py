"""Statistics of alternated runs; pure. The same estimate and interval as the crate `stats` (paired.rs, which gives the
reasons): Hodges-Lehmann on log ratios with the signed-rank interval from 6 rounds on, Student's t below."""

import math
import statistics
from dataclasses import dataclass

T_QUANTILES = {2: 12.7062, 3: 4.3027, 4: 3.1824, 5: 2.7764}


@dataclass(frozen=True)
class Ratio:
    """treated / baseline with its 95 % confidence interval."""

    low: float
    value: float
    high: float


def ratio(baseline: list[float], treated: list[float]) -> Ratio | None:
    """Values of the same position belong to the same round; None below 2 rounds."""
    logs = [math.log(after / before) for before, after in zip(baseline, treated)]
    if len(logs) < 2:
        return None
    low, value, high = student_t(logs) if len(logs) in T_QUANTILES else signed_rank(logs)
    return Ratio(math.exp(low), math.exp(value), math.exp(high))


def student_t(values: list[float]) -> tuple[float, float, float]:
    half = T_QUANTILES[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    mean, middle = statistics.fmean(values), statistics.median(values)
    return min(mean - half, middle), middle, max(mean + half, middle)


def signed_rank(values: list[float]) -> tuple[float, float, float]:
    walsh = sorted((first + second) / 2 for index, first in enumerate(values) for second in values[index:])
    cut = signed_rank_cut(len(values))
    return walsh[cut], statistics.median(walsh), walsh[-1 - cut]


def signed_rank_cut(count: int) -> int:
    """The largest c with P(T <= c - 1) <= 2.5 %, T the signed-rank statistic of `count` values, counted exactly."""
    ways = [1] + [0] * (count * (count + 1) // 2)
    for rank in range(1, count + 1):
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    cut, below = 0, ways[0]
    while (below + ways[cut + 1]) / 2**count <= 0.025:
        cut += 1
        below += ways[cut]
    return cut


def half_spread(values: list[float]) -> float:
    """Half the interquartile range, relative to the median."""
    if len(values) < 2:
        return 0.0
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return (upper - lower) / 2 / statistics.median(values)
