"""The circuit breaker: where every call to an endpoint fails in the same way, no sample is to blame."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from otoscope.errors import EndpointError, Role
from otoscope.records import Failure, FailureKind

LIMIT = 50
"""Calls in a row that fail in the same way and stop the run."""

_OF_THE_SAMPLE = frozenset(
    {
        FailureKind.MISSING_AUDIO,
        FailureKind.BAD_AUDIO,
        FailureKind.UNREADABLE_AUDIO,
        FailureKind.OUTSIDE_ROOT,
        FailureKind.OVER_LIMIT,
        FailureKind.CONTEXT_TOO_SMALL,
        FailureKind.TOO_LARGE,
    }
)
"""Failures that are nobody's but the sample's: nothing was sent, or it is too long. Long ones come together,
since all samples of a task do."""

Ended = Callable[[object, Callable[[Failure], object]], None]
"""Takes a call's result, once it is stored, and what makes a Failure one that is owed again."""


class Breaker:
    """Counts the calls to one endpoint, and breaks when :data:`LIMIT` of them failed alike, with no success.

    They are counted in the order in which they began. Else what fails at once would overtake what takes its
    time and serves: among many calls in flight, fifty failures may well come before the first answer.
    """

    def __init__(self, role: Role) -> None:
        self._role: Role = role
        self._begun = 0
        self._in_flight: dict[int, None] = {}
        self._failed: list[tuple[int, Failure, Callable[[Failure], object]]] = []
        """Since the last success."""
        self._broke_by: FailureKind | None = None

    @contextmanager
    def call(self) -> Iterator[Ended]:
        """Count a call; what is given takes its result, and raises ``EndpointError`` when it is one too many.

        A call that ends without a result counts for nothing.
        """
        self._begun += 1
        number = self._begun
        self._in_flight[number] = None

        def ended(result: object, owe: Callable[[Failure], object]) -> None:
            del self._in_flight[number]
            self._note(number, result, owe)

        try:
            yield ended
        finally:
            self._in_flight.pop(number, None)

    def _note(self, number: int, result: object, owe: Callable[[Failure], object]) -> None:
        if not isinstance(result, Failure):
            self._failed.clear()
        elif result.kind is self._broke_by:
            # It was in flight when the others broke it.
            _owe_again(result, owe)
        elif result.kind not in _OF_THE_SAMPLE:
            self._failed.append((number, result, owe))
            if len(self._failed) >= LIMIT:
                self._break_where_alike()

    def _break_where_alike(self) -> None:
        undecided = next(iter(self._in_flight), self._begun + 1)
        known = sorted((one for one in self._failed if one[0] < undecided), key=lambda one: one[0])
        kinds = {failure.kind for _, failure, _ in known[-LIMIT:]}
        if len(known) < LIMIT or len(kinds) > 1:
            return
        _, last, _ = known[-1]
        self._broke_by = last.kind
        for _, failure, owe in self._failed:
            if failure.kind is last.kind:
                _owe_again(failure, owe)
        raise EndpointError(
            self._role,
            f"the last {LIMIT} calls to the {self._role} all failed with {last.kind.value}, the last one: "
            f"{last.message}. No more are made. Nothing is lost, and what failed so is owed again: put it "
            "right, then resume the run",
        )


def _owe_again(failure: Failure, owe: Callable[[Failure], object]) -> None:
    if not failure.kind.passing:
        owe(failure)
