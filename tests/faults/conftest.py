"""Options, the table of what the faults cost, and the data sets that the tests share."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.faults.driver import EACH, Findings, Whole, end_all, large_metadata, small_data, uninterrupted

KINDS = (
    "killed",
    "signals",
    "disk full",
    "read-only",
    "clock",
    "network",
    "dying servers",
    "tls",
    "torn files",
    "two writers",
    "fuzzing",
)
_TALLY = pytest.StashKey["Tally"]()


class Tally:
    """What each fault cost, summed over the times that it was made."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()
        self.costs: dict[str, Counter[str]] = defaultdict(Counter)
        self.results: dict[str, Counter[str]] = defaultdict(Counter)
        """Of each kind of fault, how its tests ended."""

    def add(self, fault: str, found: Findings, times: int = 1) -> None:
        """Enter what a fault cost; fails the test where that is anything."""
        self.times[fault] += times
        costs = {"lost": found.lost, "paid twice": found.paid_twice, "wrong numbers": found.wrong_numbers}
        self.costs[fault] += Counter(costs)
        assert not any(costs.values()), f"{fault}: {costs}\n" + "\n".join(found.words)

    @property
    def kinds_skipped(self) -> list[str]:
        """Kinds of faults of which every test was skipped."""
        return [kind for kind, results in self.results.items() if results and set(results) == {"skipped"}]

    def table(self) -> Iterator[str]:
        """Yield the table's lines."""
        wide = max(map(len, self.times), default=5)
        columns = ("lost", "paid twice", "wrong numbers")
        yield f"{'fault':{wide}}  times  " + "  ".join(columns)
        for fault, times in self.times.items():
            cells = (f"{self.costs[fault][column]:{len(column)}}" for column in columns)
            yield f"{fault:{wide}}  {times:5}  " + "  ".join(cells)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the form that CI runs."""
    parser.addoption("--short", action="store_true", help="fewer rounds of each fault: under two minutes")


def pytest_configure(config: pytest.Config) -> None:
    """Make the table, tell the markers that only these tests have, and bound the fuzzing."""
    config.stash[_TALLY] = Tally()
    # A failure comes again, and needs no stored examples; the tests themselves bound the time of each input.
    settings.register_profile(
        "faults",
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=40 if config.getoption("--short") else 500,
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("faults")
    config.addinivalue_line(
        "markers", "kind(name): the kind of fault; a session fails where all were skipped"
    )
    config.addinivalue_line("markers", "full(**only): left out of the short form, where arguments are these")
    config.addinivalue_line("markers", "rounds(full, short=0): how often; the test takes the argument `seed`")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test with the marker ``rounds`` its seeds."""
    marker = metafunc.definition.get_closest_marker("rounds")
    if marker is not None:
        full, short = marker.kwargs["full"], marker.kwargs.get("short", 0)
        count = short if metafunc.config.getoption("--short") else full
        metafunc.parametrize("seed", range(count))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the short form has no round of, and what is marked as such."""
    if config.getoption("--short"):
        left_out = [item for item in items if "NOTSET" in item.name or _is_for_the_full_form(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _is_for_the_full_form(item: pytest.Item) -> bool:
    arguments = (
        item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    )
    markers = (marker.kwargs for marker in item.iter_markers("full"))
    return any(all(arguments[name] in values for name, values in only.items()) for only in markers)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note how the tests of each kind of fault ended."""
    report: pytest.TestReport = yield  # type: ignore[assignment]
    marker = item.get_closest_marker("kind")
    assert marker is not None, f"{item.nodeid} has no kind"
    assert marker.args[0] in KINDS
    if report.when == "call" or report.outcome != "passed":
        item.config.stash[_TALLY].results[marker.args[0]][report.outcome] += 1
    return report  # type: ignore[return-value]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail where the machine refused every test of a kind."""
    if session.exitstatus == 0 and session.config.stash[_TALLY].kinds_skipped:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table."""
    tally = config.stash[_TALLY]
    if tally.times:
        terminalreporter.write_line("")
        for line in tally.table():
            terminalreporter.write_line(line)
    for kind in tally.kinds_skipped:
        terminalreporter.write_line(f"every test of {kind} was skipped: that is a failure", red=True)


@pytest.fixture
def tally(pytestconfig: pytest.Config) -> Tally:
    """Give the table."""
    return pytestconfig.stash[_TALLY]


@pytest.fixture(scope="session")
def short(pytestconfig: pytest.Config) -> bool:
    """Whether this is the short form."""
    return bool(pytestconfig.getoption("--short"))


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Evaluate the small data set without any interference."""
    folder = tmp_path_factory.mktemp("small")
    return uninterrupted(small_data(folder / "data"), folder / "whole")


@pytest.fixture(scope="session")
def slow_to_read(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Evaluate a data set that takes time to read, of which a limit takes a few samples."""
    folder = tmp_path_factory.mktemp("slow-to-read")
    return uninterrupted(large_metadata(folder / "data"), folder / "whole", "--limit", str(EACH))


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """End what a test that failed has started."""
    yield
    end_all()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder for one evaluation."""
    folder = tmp_path / "evaluation"
    folder.mkdir()
    return folder
