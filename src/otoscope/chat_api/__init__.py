"""One OpenAI-compatible chat request: the only owner of retries, deadlines, and what an error means.

A request ends in a :class:`~otoscope.records.Reply`, in a :class:`~otoscope.records.Failure` (this sample's
trouble), or in an :class:`~otoscope.errors.EndpointError` (nothing is wrong with the sample: no other one
would fare better).

::

    endpoint     ask() at one server: the loop of tries, pauses, deadlines
    replicas     ask() at several servers of one model: one queue, and what becomes of one that is away
    ├── asking       one call over all its attempts, and the time after which none is begun
    ├── server       one server: single attempts, its pauses, what is learnt of it
    ├── rate         the user's own limits: requests and tokens a minute
    ├── budget       what a user lets the judge use in all: calls, tokens, money
    ├── health       whether the server lives: --wait-ready, at the start and when it dies in the run
    ├── wire_form    which parameters and audio parts this server takes, learnt from its refusals
    ├── body         what is sent: JSON around a clip that is read from disk meanwhile
    ├── connections  one exchange over HTTP: sessions, proxy, Expect: 100-continue
    ├── masking      secrets taken out of what comes back
    ├── replies      what came back: completions, event streams, errors, Retry-After
    └── troubles     the tables: what each status and each broken connection means
"""

from otoscope.chat_api.body import AudioData, AudioPart
from otoscope.chat_api.budget import Budget
from otoscope.chat_api.endpoint import ChatEndpoint
from otoscope.chat_api.health import Gate
from otoscope.chat_api.rate import RateLimit
from otoscope.chat_api.replicas import Replicas

__all__ = ["AudioData", "AudioPart", "Budget", "ChatEndpoint", "Gate", "RateLimit", "Replicas"]
