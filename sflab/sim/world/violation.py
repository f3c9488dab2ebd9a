"""The exception that a checker raises when a promise is broken."""

from __future__ import annotations


class Violation(Exception):  # noqa: N818 (it is a finding about the machine, not a fault of the simulator)
    """`checker` has found something that must never be; the traces of `nodes` explain it."""

    def __init__(self, checker: str, what: str, nodes: tuple[str, ...] = ()) -> None:
        super().__init__(what)
        self.checker = checker
        self.what = what
        self.nodes = nodes

    def __str__(self) -> str:
        return f"[{self.checker}] {self.what}"
