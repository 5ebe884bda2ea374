"""What is sent of a sample's clip: the clip under the audio policy, or what a control puts in its place.

::

    no control   the sample's own clip
    silence      silence as long as the sample's own clip
    shuffled     the clip of another sample of the task
    no-audio     nothing
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import replace

from otoscope import audio, dataset
from otoscope.config import Settings
from otoscope.dataset import Dataset
from otoscope.errors import DatasetError
from otoscope.records import AudioClip, Event, Failure, FailureKind, Notice, Sample, Sending
from otoscope.store import StoredAnswer, StoredFailure

_CONVERTING = 16
"""Clips that are converted at a time at most: what else waits for a thread must find one."""
_HELD_BYTES = 8 << 20
"""Of clips that wait in memory to be sent; what has no room is read once more, block by block."""
_SHOWN = 5


class Clips:
    """What is sent for each of a run's samples.

    Raises ``ConfigError`` where the control or the policy cannot be carried out on these samples, or with the
    libraries that are installed.
    """

    def __init__(self, data: Dataset, settings: Settings, tell: Callable[[Event], None]) -> None:
        self._samples = data.samples
        self._root = None if settings.data.follow_links else data.root
        self._policy = settings.audio.policy
        self._control = settings.audio.control
        self._tell = tell
        self._told = False
        self._converted = audio.ConvertedClips(settings.audio.cache, settings.audio.cache_bytes)
        self._loader = audio.Loader(self._policy, self._converted, audio.HeldClips(_HELD_BYTES))
        shuffled = self._control == "shuffled"
        self._others = dataset.shuffled_clips(data.selected, settings.selection.seed) if shuffled else {}
        self._turns = asyncio.Semaphore(min(os.cpu_count() or 1, _CONVERTING))

    # --- one clip -----------------------------------------------------------------------------------------

    async def load(self, sample: Sample) -> AudioClip | Failure | None:
        """Return what is sent for a sample; ``None`` where nothing is. Failures as of ``audio.Loader``."""
        if self._control == "no-audio":
            return None
        async with contextlib.nullcontext() if self._policy.is_as_is else self._turns:
            clip = await asyncio.to_thread(self._load, sample)
        if self._converted.trouble is not None and not self._told:
            self._told = True
            trouble = self._converted.trouble
            self._tell(Notice(f"converted clips are not kept for the next run ({trouble}); this one goes on"))
        return clip

    def _load(self, sample: Sample) -> AudioClip | Failure:
        source = self.source(sample)
        if failure := dataset.outside_root(source, self._root):
            return failure
        if self._control == "silence":
            clip = self._loader.silent(source.audio_path)
        else:
            clip = self._loader.load(source.audio_path)
        if self._control is None or isinstance(clip, Failure):
            return clip
        taken_from = source.clip_key if self._control == "shuffled" else None
        return replace(clip, control=self._control, taken_from=taken_from)

    def source(self, sample: Sample) -> Sample:
        """Return the sample whose clip is sent, or measured, for this one."""
        return self._others.get(sample.key, sample)

    # --- headers alone ------------------------------------------------------------------------------------

    def sending(self) -> tuple[Sending, list[tuple[str, Failure]]]:
        """Return what would be sent, and key and trouble of each sample whose clip cannot be. It blocks."""
        sending = Sending()
        unusable: list[tuple[str, Failure]] = []
        for sample in self._samples:
            header = self.measure(sample)
            change = audio.change_of(header, self._policy) if isinstance(header, audio.Header) else None
            match header, change:
                case Failure(), _:
                    unusable.append((sample.key, header))
                case audio.Header(), str():
                    path = self.source(sample).audio_path
                    unusable.append((sample.key, Failure(FailureKind.BAD_AUDIO, f"{path}: {change}")))
                case audio.Header(), _:
                    sending.seconds += header.seconds
                    sending.size += header.size
                    sending.changed += change is not None
                    if audio.over_limit(header, self._policy):
                        sending.over_limit += 1
                        sending.seconds_over += header.seconds - (self._policy.max_seconds or 0.0)
        return sending, unusable

    def measure(self, sample: Sample) -> audio.Header | Failure | None:
        """Read the header of the clip that is sent for a sample; ``None`` where none is."""
        if self._control == "no-audio":
            return None
        source = self.source(sample)
        return dataset.outside_root(source, self._root) or audio.measure(source.audio_path)

    def refuse_over_limit(self, samples: Iterable[Sample]) -> None:
        """Raise ``DatasetError`` when the policy has a run stop at clips like some of these samples'."""
        if self._policy.over != "error":
            return
        over: list[str] = []
        for sample in samples:
            header = self.measure(sample)
            if isinstance(header, audio.Header) and audio.over_limit(header, self._policy):
                over.append(f"  {self.source(sample).clip_key}: {header.seconds:g} s")
        if over:
            listed = list(dict.fromkeys(over))
            more = [f"  and {len(listed) - _SHOWN:,} more"] if len(listed) > _SHOWN else []
            limit = f"{self._policy.max_seconds:g} s"
            lines = [
                f"{len(listed):,} of the clips are over the {limit} of the audio policy:",
                *listed[:_SHOWN],
                *more,
                "Nothing was sent. Give a larger max-seconds=, or over=truncate or over=skip",
            ]
            raise DatasetError("\n".join(lines))

    # --- what a stored line is about ----------------------------------------------------------------------

    def changed(self, sample: Sample, stored: StoredAnswer) -> bool:
        """Whether the clip that a stored answer is about is another one by now."""
        if self._control == "no-audio":
            return False
        return self._is_another(
            sample, stored.clip_from, stored.clip_bytes, stored.clip_mtime_ns, stored.clip_sha256
        )

    def mended(self, sample: Sample, failure: StoredFailure) -> bool:
        """Whether what made a clip unusable is gone, so that its sample is owed again."""
        source = self.source(sample)
        match failure.kind:
            case FailureKind.MISSING_AUDIO:
                return audio.file_state(source.audio_path) is not None
            case FailureKind.BAD_AUDIO | FailureKind.OVER_LIMIT:
                return failure.file is None or dict(failure.file) != audio.file_state(source.audio_path)
            case FailureKind.OUTSIDE_ROOT:
                return dataset.outside_root(source, self._root) is None
            case _:
                clip = failure.clip
                return clip is not None and self._is_another(
                    sample, clip.get("from"), clip["bytes"], clip["mtime_ns"], clip["sha256"]
                )

    def _is_another(
        self, sample: Sample, taken_from: str | None, size: int, mtime_ns: int, sha256: str
    ) -> bool:
        """Whether a clip is another one than it was: whose it is, size and time, then the bytes."""
        source = self.source(sample)
        # A selection that grew may have given the sample another partner: with both kinds of pairs in one
        # run, some clips would be asked about twice, others never, and the numbers depend on its history.
        if self._control == "shuffled" and taken_from != source.clip_key:
            return True
        path = source.audio_path
        state = audio.file_state(path)
        if state is None or state == {"bytes": size, "mtime_ns": mtime_ns}:
            return False
        found = audio.file_sha256(path)
        return found is not None and found != sha256
