"""The batches of the probe, and the statistics that BatchNorm must make of them."""

from math import sqrt
from typing import Any

CHANNELS = 3
#: Deviations of a batch from its mean: sum 0, sum of squares 10, so variance 2 (biased) or 2.5.
_DEVIATIONS = (-2, -1, 0, 1, 2)
MOMENTUM = 0.5  # exact in binary, unlike torch's default of 0.1
#: Mean and unbiased variance of each channel.
Statistics = tuple[list[float], list[float]]
START: Statistics = ([0.0] * CHANNELS, [1.0] * CHANNELS)  # of a new BatchNorm


def batch(place: int, device: str) -> Any:
    """The batch of one group rank, shape (5, CHANNELS): mean (rank+1)(channel+1), variance 2(rank+1)²."""
    import torch

    rows = [[channel + 1 + deviation for channel in range(CHANNELS)] for deviation in _DEVIATIONS]
    return (place + 1) * torch.tensor(rows, dtype=torch.float32, device=device)


def of_rank(place: int) -> Statistics:
    """Mean and unbiased variance of the batch of one group rank."""
    means = [float((place + 1) * (channel + 1)) for channel in range(CHANNELS)]
    return means, [2.5 * (place + 1) ** 2] * CHANNELS


def overall(ranks: int) -> Statistics:
    """Mean and unbiased variance over the batches of all ranks."""
    elements = ranks * len(_DEVIATIONS)
    means, biased = overall_biased(ranks)
    return means, [variance * elements / (elements - 1) for variance in biased]


def overall_biased(ranks: int) -> Statistics:
    """Mean and biased variance over the batches of all ranks: what SyncBatchNorm normalises with."""
    square = sum((place + 1) ** 2 for place in range(ranks)) / ranks
    means = [(channel + 1) * (ranks + 1) / 2 for channel in range(CHANNELS)]
    return means, [square * (2 + (channel + 1) ** 2) - means[channel] ** 2 for channel in range(CHANNELS)]


def of_rank_biased(place: int) -> Statistics:
    """Mean and biased variance of the batch of one group rank: what BatchNorm normalises with."""
    means, _ = of_rank(place)
    return means, [2.0 * (place + 1) ** 2] * CHANNELS


def normalised(place: int, statistics: Statistics) -> list[float]:
    """The batch of one group rank less the mean, over the deviation, row by row (torch's epsilon: 1e-5)."""
    means, variances = statistics
    return [
        ((place + 1) * (channel + 1 + deviation) - means[channel]) / sqrt(variances[channel] + 1e-5)
        for deviation in _DEVIATIONS
        for channel in range(CHANNELS)
    ]


def updated(running: Statistics, seen: Statistics) -> Statistics:
    """Running statistics after one more batch."""
    means, variances = (
        [(1 - MOMENTUM) * old + MOMENTUM * new for old, new in zip(olds, news, strict=True)]
        for olds, news in zip(running, seen, strict=True)
    )
    return means, variances
