"""One session of work on a run that is open: what it owes, the work, and its results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from otoscope.chat_api import Budget
from otoscope.config import Settings
from otoscope.errors import LimitReachedError
from otoscope.lock import RunLock
from otoscope.records import Estimate, Event, Failure, FailureKind, Notice, RunStarted, Sample
from otoscope.runs import Run, judged_orders, standing_results, write_results
from otoscope.store import SAMPLES, Plan, RunStore, StoredAnswer, StoredFailure, sample_to_line

OnEvent = Callable[[Event], None]


def what_is_owed(
    store: RunStore,
    samples: Sequence[Sample],
    settings: Settings,
    *,
    clip_changed: Callable[[Sample, StoredAnswer], bool],
    mended: Callable[[Sample, StoredFailure], bool],
) -> Plan:
    """Work out what the run owes, as :meth:`RunStore.plan` does, under the run's own judge."""
    return store.plan(
        samples,
        judged_orders(store.manifest),
        store.manifest["judge_id"] if settings.judge is not None else None,
        retry_failed=settings.run.retry_failed,
        clip_changed=clip_changed,
        mended=mended,
    )


async def carry_out(
    work: Callable[[Plan], Awaitable[None]],
    plan: Plan,
    store: RunStore,
    lock: RunLock,
    samples: Sequence[Sample],
    *,
    orders: int,
    budget: Budget,
    estimate: Estimate | None,
    tell: OnEvent,
) -> Run:
    """Do the work; whatever happens in it, what there is gets summed up and written.

    ``orders`` is how many verdicts each answer gets in this session, 0 without a judge; ``estimate`` is what
    they are expected to use of the ``budget``, where that was not told before.
    """
    for sample in plan.superseded:
        changed = Failure(FailureKind.CLIP_CHANGED, "the stored answer is about another clip than this one")
        store.append_answer(sample, None, changed)
    if plan.answers or plan.verdicts or not (store.path / SAMPLES).exists():
        store.write_samples(map(sample_to_line, samples))
    if count := store.skipped_lines:
        tell(Notice(f"{count} lines of {store.path} are torn or foreign: what only they held is owed again"))
    tell(
        RunStarted(
            run_path=store.path,
            samples=len(samples),
            answers_done=plan.answers_done,
            answers_owed=len(plan.answers),
            verdicts_done=plan.verdicts_done,
            verdicts_owed=len(plan.verdicts) + orders * len(plan.answers),
            orders=orders,
            estimate=estimate,
        )
    )
    if estimate is not None and (warning := budget.warning(estimate)) is not None:
        tell(Notice(warning))
    try:
        await work(plan)
    except BaseException as error:
        # Whose lock was taken must not write over what the new owner knows.
        if lock.still_ours():
            write_results(store, samples)
        if isinstance(error, LimitReachedError):
            raise budget.error(owed=_verdicts_owed(store, samples)) from None
        raise
    idle = not (plan.answers or plan.verdicts or plan.superseded)
    # In a thread: other runs may be asking for their verdicts meanwhile.
    return await asyncio.to_thread(_summed_up, store, samples, idle=idle)


def _verdicts_owed(store: RunStore, samples: Sequence[Sample]) -> int:
    """Return how many verdicts a resume would owe."""
    orders = judged_orders(store.manifest)
    plan = store.plan(samples, orders, store.manifest["judge_id"], clip_changed=no_clip, mended=no_clip)
    return len(plan.verdicts) + len(orders) * len(plan.answers)


def no_clip(*_: object) -> bool:
    """Say of a clip that nothing has changed, where none is read."""
    return False


def _summed_up(store: RunStore, samples: Sequence[Sample], *, idle: bool) -> Run:
    """Return the run with its results: after a session without work those that it has, where they stand."""
    standing = standing_results(store, samples) if idle else None
    if standing is not None:
        return Run(store.path, standing)
    return Run(store.path, write_results(store, samples), changed=True)


def ignore(_event: Event) -> None:
    """Listen to nothing."""
