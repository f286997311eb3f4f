"""What the chaos tests and the soak measure with: each must notice what it is there for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.chaos.mix import SURFACES, Caller, Ledger, Surface
from tests.chaos.soak import Sample, Soak, growth
from tests.chaos.table import Fault, render_faults
from tests.chaos.weather import FAULTS
from tests.harness import Pair


def sample(age: float, rss: int, pid: int = 1) -> Sample:
    return Sample(age, age, "web", pid, rss, 20, 5)


def looks(sizes: list[int]) -> list[Sample]:
    """One look every 5 s."""
    return [sample(5.0 * number, size) for number, size in enumerate(sizes, 1)]


def test_growth_is_against_the_end_of_a_processs_own_first_minute() -> None:
    warming_up = [30, 50, 70, 90, 95] + [100] * 7
    assert [one.lasting for one in growth(looks(warming_up + [100] * 20))] == [0]
    (grown,) = growth(looks(warming_up + [100] * 10 + [107] * 10))
    assert (grown.base, grown.lasting) == (100, pytest.approx(0.07))
    (slowly,) = growth(looks([*warming_up, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112]))
    assert slowly.lasting > 0.05


def test_what_is_in_flight_for_one_moment_is_a_peak_and_no_growth() -> None:
    (found,) = growth(looks([100] * 20 + [150] + [100] * 5))
    assert (found.lasting, found.peak) == (0, 0.5)


def test_a_process_that_lived_no_minute_and_a_half_has_no_growth() -> None:
    assert growth(looks([100] * 12 + [200] * 5)) == []
    assert growth([sample(70, 100), sample(150, 200)]) == []


def test_a_broken_connection_is_lost_unless_the_fault_ends_its_process_and_a_timeout_always_is() -> None:
    outcomes = {"200": 5, "503 scorer_unavailable": 2, "lost": 3}
    errors = [ConnectionResetError(), ConnectionRefusedError(), TimeoutError()]
    for cuts, expected in ((True, (2, 1)), (False, (0, 3))):
        fault = Fault("x")
        fault.add(outcomes, errors, 1, cuts)
        assert (fault.cut, fault.lost, fault.wrong) == (*expected, 1)
        assert fault.answers == {"200": 5, "503 scorer_unavailable": 2}
    assert "NO" in render_faults([fault])[1]


@pytest.fixture
def asking(served: Pair) -> Iterator[tuple[Caller, Ledger]]:
    ledger = Ledger()
    caller = Caller(served, ledger, 1, 0, keep=True)
    yield caller, ledger
    caller.stop_connection()


@pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface.name)
def test_every_surface_is_answered_as_it_expects(asking: tuple[Caller, Ledger], surface: Surface) -> None:
    caller, ledger = asking
    caller.ask(surface)
    assert ledger.wrong == ledger.unexpected == ledger.broken == []
    assert sum(ledger.counts.values()) == 1


@pytest.mark.parametrize("surface", [one for one in SURFACES if one.name.startswith(("/decide", "/v1/systemone"))])
def test_anothers_answer_is_noticed(asking: tuple[Caller, Ledger], surface: Surface) -> None:
    """The request is that of one caller, the answer another's: the check runs on a real answer."""
    caller, ledger = asking
    one, other = surface.make(), surface.make()
    caller.ask(Surface(surface.name, 1, lambda: type(one)(one.method, one.path, one.body, own=other.own)))
    assert len(ledger.wrong) == 1


def test_an_answer_that_nothing_explains_is_noticed(asking: tuple[Caller, Ledger]) -> None:
    caller, ledger = asking
    good = SURFACES[0].make()
    caller.ask(Surface("x", 1, lambda: type(good)("POST", "/nope", b"{}")))
    assert [outcome for _, outcome, _ in ledger.unexpected] == ["404 not_found"]


def soak_of() -> Soak:
    service: Any = object()
    return Soak(service, 1, 20, "fake")


def test_a_connection_that_broke_outside_every_faults_time_is_lost() -> None:
    soak = soak_of()
    kill = next(kind for kind in FAULTS if kind.cuts)
    reload = next(kind for kind in FAULTS if kind.retires)
    soak.windows += [(10, 20, kill), (30, 40, reload)]
    assert soak.cut_by(15, False) is kill
    assert soak.cut_by(25, True) is None
    assert soak.cut_by(35, True) is reload
    assert soak.cut_by(35, False) is None, "a reload closes no connection on which a request is"


def test_every_fault_has_its_turn_before_one_comes_again() -> None:
    soak = soak_of()
    drawn = [soak.next_kind().name for _ in FAULTS]
    assert sorted(drawn) == sorted(kind.name for kind in FAULTS)
    assert drawn != [kind.name for kind in FAULTS]
    again = soak_of()
    assert [again.next_kind().name for _ in FAULTS] == drawn, "a seed is a run"
