"""What a chaos run tells: one line a fault, and their sum.

A caller's fate is one of these. An **answer** is a status. A **cut** is a connection that closed or was refused while
the fault was the end of the very process that held it (a killed web worker or master, a port nobody listens on): no
server can answer then. Everything else is a **lost** request: no answer within the caller's patience, a connection that
ends though its process lives, or bytes that are no whole answer. A **wrong** answer is a 200 with anything that belongs
to another request: every decision of the load names its options after itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Fault", "columns", "render_faults", "render_list"]


@dataclass
class Fault:
    """One kind of fault of one test. ``repeats`` is how often it was done, ``recoveries`` are seconds from a fault to
    the first 200 of a new request, or from the order to start again what the test had left broken for a while."""

    name: str
    repeats: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    lost: int = 0
    wrong: int = 0
    recoveries: list[float] = field(default_factory=list)
    survived: bool = False

    def add(self, outcomes: Mapping[str, int], errors: Sequence[BaseException], wrong: int, cuts: bool) -> None:
        """Add a load's counts: ``outcomes`` by status and code, ``errors`` the broken connections. ``cuts``: this fault
        ends the process that holds the connection."""
        self.answers.update({name: count for name, count in outcomes.items() if name[0].isdigit()})
        broken = sum(count for name, count in outcomes.items() if not name[0].isdigit())
        cut = sum(not isinstance(error, TimeoutError) for error in errors) if cuts else 0
        self.cut += cut
        self.lost += broken - cut
        self.wrong += wrong


def render_faults(faults: Iterable[Fault]) -> list[str]:
    """The table, ready to print."""
    faults = list(faults)
    rows = [("fault", "times", "survived", "answers", "not 200", "cut", "lost", "wrong", "recovery in s: median, most")]
    for fault in faults:
        times = sorted(fault.recoveries)
        recovery = f"{times[len(times) // 2]:.2f}, {times[-1]:.2f}" if times else "-"
        answers = sum(fault.answers.values())
        rows.append(
            (
                fault.name,
                str(fault.repeats),
                "yes" if fault.survived else "NO",
                str(answers),
                str(answers - fault.answers["200"]),
                str(fault.cut),
                str(fault.lost),
                str(fault.wrong),
                recovery,
            )
        )
    total = (
        "all",
        str(sum(fault.repeats for fault in faults)),
        f"{sum(fault.survived for fault in faults)} of {len(faults)}",
        str(sum(sum(fault.answers.values()) for fault in faults)),
        str(sum(sum(fault.answers.values()) - fault.answers["200"] for fault in faults)),
        *(str(sum(getattr(fault, name) for fault in faults)) for name in ("cut", "lost", "wrong")),
        "",
    )
    return columns([*rows, total])


def render_list(title: str, results: Mapping[str, tuple[int, int, str]]) -> list[str]:
    """One line for each entry of a list of faults: tests passed, tests that ran, and why none did."""
    rows = [(title, "tests passed", "")]
    for name, (passed, ran, why) in results.items():
        rows.append((name, f"{passed} of {ran}" if ran else "-", why if not ran else "" if passed == ran else "FAILED"))
    return columns(rows)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of equal length as lines of aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
