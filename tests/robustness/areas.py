"""The areas of the harness: what is fuzzed, and how many cases of each a test run takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, settings

from audit_cases import audit_cases
from call_cases import input_cases, looking_cases, metric_cases, option_cases, target_cases, wrap_cases
from command_cases import command_cases
from fault_cases import fault_cases
from file_cases import data_cases, folder_cases, result_cases, view_cases
from outcomes import Case
from strategies import Strategy


@dataclass(frozen=True)
class Area:
    """One kind of odd calls."""

    name: str
    cases: Callable[[], Strategy[Case]]
    count: int  # of cases in `make test`


AREAS = {
    area.name: area
    for area in (
        Area("inputs", input_cases, 60),
        Area("targets", target_cases, 80),
        Area("options", option_cases, 80),
        Area("metrics", metric_cases, 50),
        Area("looking", looking_cases, 30),
        Area("audits", audit_cases, 40),
        Area("wrap", wrap_cases, 40),
        Area("faults", fault_cases, 50),
        Area("data", data_cases, 40),
        Area("results", result_cases, 60),
        Area("views", view_cases, 30),
        Area("folders", folder_cases, 20),
        Area("commands", command_cases, 40),
    )
}

# The same cases in every run; how long one takes, or how large its inputs are, is no failure.
CALM = settings(
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
settings.register_profile("ci", CALM, derandomize=True)
settings.register_profile("fuzz", CALM, derandomize=False)


def test_of(area: Area, judge: Callable[[Case], None], profile: settings) -> Callable[[], None]:
    """A hypothesis test that judges cases of an area."""

    @profile
    @given(area.cases())
    def cases_hold(case: Case) -> None:
        judge(case)

    return cases_hold
