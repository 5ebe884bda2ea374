"""One call of ``ask``, from its first attempt to its end, and the time after which none is begun."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from otoscope.chat_api.connections import Route
from otoscope.chat_api.troubles import Next, Trouble
from otoscope.config import EndpointSettings

MAX_BACKOFF = 60.0


@dataclass(slots=True, eq=False)
class Asking:
    """What is known of one call, over all its attempts. Times are those of the event loop."""

    deadline: float
    route: Route = field(default_factory=Route)
    attempts: int = 0
    failed_tries: int = 0
    unreachable_since: float | None = None
    """When the first of the last attempts failed that all found no server."""
    failing_since: float = 0.0
    """When the first of the failed tries had failed."""
    probing: bool = False
    """Whether it only is to show that a completion works."""
    audio_refusals: dict[str, str] = field(default_factory=dict)
    """The wire forms in which the clip was refused, each with the server's words."""
    audio_form: str | None = None
    """The form to try next, while none is known to be taken."""

    def note(self, trouble: Trouble, now: float, *, uses_up_a_try: bool = True) -> None:
        """Keep count of an attempt that brought no reply."""
        if trouble.next is Next.BACK_OFF and uses_up_a_try:
            self.failing_since = self.failing_since if self.failed_tries else now
            self.failed_tries += 1
        if not trouble.unreachable:
            self.unreachable_since = None
        elif self.unreachable_since is None:
            self.unreachable_since = now

    def elsewhere(self) -> None:
        """Forget what was learnt of one server: the next attempt is at another one."""
        self.route, self.audio_refusals, self.audio_form = Route(), {}, None

    def backoff(self, settings: EndpointSettings) -> float:
        """Full jitter: anything from nothing to the exponentially growing interval, in seconds."""
        ceiling = min(MAX_BACKOFF, settings.retry_interval * 2.0 ** min(self.failed_tries - 1, 30))
        return random.uniform(0, ceiling)  # noqa: S311 (no secret hangs on it)


class EndOfAsking:
    """Whether no attempt is begun any more. To be used in one event loop."""

    def __init__(self) -> None:
        self._come: asyncio.Future[None] | None = None

    def open(self) -> None:
        """Get ready; needs the running event loop."""
        self._come = asyncio.get_running_loop().create_future()

    @property
    def come(self) -> asyncio.Future[None]:
        """Done from the end on."""
        if self._come is None:
            raise RuntimeError("the endpoint is used outside of its context manager")
        return self._come

    def set(self) -> None:
        """Have it come, any number of times."""
        if not self.come.done():
            self.come.set_result(None)

    def check(self) -> None:
        """Raise ``asyncio.CancelledError`` once it has come."""
        if self.come.done():
            raise asyncio.CancelledError("no more is asked: the run stops")

    async def sleep(self, seconds: float) -> None:
        """Wait for some seconds; raises as :meth:`check` does, at once when it comes."""
        await asyncio.wait((self.come,), timeout=seconds)
        self.check()
