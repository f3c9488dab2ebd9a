"""Claims of the paper, and whether a study finds them too: each claim with its figures and a verdict.

A claim is met or not by the means over seeds; whether the difference exceeds its noise is said beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from sflab.studies.findings import Findings, Group, Interval, find, interval

PAPER_UPDATES = 80_000
"""Updates of the paper's longest run: 16 clients with 5,000 steps each."""

PAPER_BYTES = 400_000
"""Bytes per edge that the paper counts for them."""

PAPER_GAP = (-0.06, -0.04)
"""Score of SeedFlood relative to DSGD in the paper."""

RIVALS = ("dzsgd", "dzsgd-lora", "chocosgd-lora")
"""Methods that SeedFlood does not fall below in the paper."""

SEGMENT = 32
"""Updates that a node signs together at most."""


class Verdict(StrEnum):
    """Outcome of a comparison."""

    MET = "met"
    NOT_MET = "not met"
    UNKNOWN = "not measured"


class Comparison(NamedTuple):
    """A claim of the paper beside what was found."""

    claim: str
    verdict: Verdict
    found: str
    why: str = ""
    """Context that a reader needs to judge it."""


def comparisons(findings: Findings) -> list[Comparison]:
    """Compare a study with the paper, claim by claim."""
    found = []
    for task in findings.tasks:
        groups = [group for group in findings.groups("methods") if findings.subject(group.cell) == task]
        found += [_rival(task, groups, rival) for rival in RIVALS]
        found.append(_gap(task, groups))
        found += [*_bytes(findings, task), _clients(findings, task)]
    return [*found, _consensus(findings)]


def paired(one: Group, other: Group, name: str = "score") -> Interval | None:
    """Return the mean difference of an end value between cells of the same seed, with its interval."""
    others = dict(other.by_seed(name))
    return interval([value - others[seed] for seed, value in one.by_seed(name) if seed in others])


def noise(difference: Interval) -> str:
    """Say whether a difference exceeds what seeds make of it."""
    if difference.seeds == 1:
        return "One seed: nothing is known of the noise."
    if difference.low <= 0 <= difference.high:
        return f"The 95 % interval of the difference over {difference.seeds} seeds includes 0."
    return f"The 95 % interval of the difference over {difference.seeds} seeds does not include 0."


def _rival(task: str, groups: Sequence[Group], rival: str) -> Comparison:
    claim = f"{task}: SeedFlood scores at least as high as {label(rival)} (ring)"
    ours, theirs = (find(groups, method=name, topology="ring") for name in ("seedflood", rival))
    if ours is None or theirs is None:
        return _unknown(claim)
    return _not_below(claim, ours, theirs)


def _gap(task: str, groups: Sequence[Group]) -> Comparison:
    low, high = (f"{100 * share:+.0f}" for share in PAPER_GAP)
    claim = f"{task}: SeedFlood stays within 6 % of DSGD (paper: {low} to {high} %)"
    ours, theirs = (find(groups, method=name, topology="ring") for name in ("seedflood", "dsgd"))
    if ours is None or theirs is None:
        return _unknown(claim)
    one, other = ours.of("score"), theirs.of("score")
    if one is None or other is None or not other.mean:
        return _unknown(claim)
    gap = one.mean / other.mean - 1
    difference = paired(ours, theirs)
    return Comparison(
        claim,
        Verdict.MET if gap >= PAPER_GAP[0] else Verdict.NOT_MET,
        f"{100 * gap:+.1f} % ({one.mean:.3f} against {other.mean:.3f})",
        noise(difference) if difference else "",
    )


def _bytes(findings: Findings, task: str) -> list[Comparison]:
    claim = f"{task}: an edge carries at most {PAPER_BYTES // 1000} KB for {PAPER_UPDATES:,} updates"
    groups = [one for one in findings.groups("bytes") if one.results and findings.subject(one.cell) == task]
    if not groups:
        return [_unknown(claim)]
    return [_bytes_of(group, claim) for group in sorted(groups, key=lambda one: one.cell.local_steps)]


def _bytes_of(group: Group, claim: str) -> Comparison:
    cell = group.cell
    updates = cell.steps * cell.network.clients
    measured = group.of("bytes_per_edge")
    claim = f"{claim}, with one communication for {cell.local_steps} local steps"
    if measured is None:
        return _unknown(claim)
    each = measured.mean / updates
    why = f"Both directions of a link together, measured with {updates:,} updates and scaled."
    if cell.local_steps < SEGMENT:
        why += (
            f" A segment is signed, and holds {cell.local_steps} updates here: 64 bytes of signature for "
            "so few are what the paper's count leaves out."
        )
    return Comparison(
        claim,
        Verdict.MET if each * PAPER_UPDATES <= PAPER_BYTES else Verdict.NOT_MET,
        f"{each * PAPER_UPDATES / 1000:,.0f} KB, {each:.2f} bytes an update",
        why,
    )


def _clients(findings: Findings, task: str) -> Comparison:
    groups = [
        group
        for group in findings.groups("clients")
        if group.results and group.cell.method == "seedflood" and findings.subject(group.cell) == task
    ]
    groups.sort(key=lambda group: group.cell.network.clients)
    if len(groups) < 2:
        return _unknown(f"{task}: many clients do not score below 16 at the same number of rounds")
    few, many = groups[0], groups[-1]
    numbers = f"{many.cell.network.clients} clients do not score below {few.cell.network.clients}"
    claim = f"{task}: {numbers} at the same number of rounds"
    return _not_below(claim, many, few)


def _consensus(findings: Findings) -> Comparison:
    claim = "All clients of SeedFlood end with the same model where updates reach all in every round"
    groups = [group for group in findings.groups("methods") if group.cell.method == "seedflood"]
    errors = [value for group in groups for _, value in group.by_seed("consensus")]
    if not errors:
        return _unknown(claim)
    exact = not any(errors)
    return Comparison(
        claim,
        Verdict.MET if exact else Verdict.NOT_MET,
        f"largest consensus error of {len(errors)} runs: {max(errors):g}",
        "Equal to the bit: cores are sums of integers." if exact else "",
    )


def _not_below(claim: str, ours: Group, theirs: Group) -> Comparison:
    """Return whether the mean score of `ours` is at least that of `theirs`, seed by seed."""
    one, other, difference = ours.of("score"), theirs.of("score"), paired(ours, theirs)
    if one is None or other is None or difference is None:
        return _unknown(claim)
    return Comparison(
        claim,
        Verdict.MET if difference.mean >= 0 else Verdict.NOT_MET,
        f"{one.mean:.3f} against {other.mean:.3f}, difference {signed(difference)}",
        noise(difference),
    )


def _unknown(claim: str) -> Comparison:
    return Comparison(claim, Verdict.UNKNOWN, "the cells for it are not finished, or not in this preset")


def signed(value: Interval) -> str:
    """Write a difference with its interval."""
    if value.seeds == 1:
        return f"{value.mean:+.3f}"
    return f"{value.mean:+.3f} ({value.low:+.3f} to {value.high:+.3f})"


LABELS = {
    "seedflood": "SeedFlood",
    "dsgd": "DSGD",
    "dzsgd": "DZSGD",
    "chocosgd": "ChocoSGD",
    "mezo": "MeZO",
    "sgd": "SGD",
    "adamw": "AdamW",
    "diloco": "DiLoCo",
    "gaia": "Gaia",
    "fedkseed": "FedKSeed",
    "decomfl": "DeComFL",
    "zo-cosmo": "ZO-COSMO",
}

SUFFIXES = {"lora": "LoRA", "fp16": "FP16", "powersgd": "PowerSGD"}


def label(method: str) -> str:
    """Return a method's name as its paper writes it."""
    if method in LABELS:
        return LABELS[method]
    first, dash, last = method.rpartition("-")
    if not dash:
        return method
    return f"{LABELS.get(first, first)}-{SUFFIXES.get(last, last)}"
