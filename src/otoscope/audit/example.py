"""One sample in the form that the benchmark's page shows, which is that of evalscope's ``Sample``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from otoscope.audio import measure
from otoscope.benchmark import TASKS
from otoscope.errors import ConfigError
from otoscope.records import Failure, Json, Sample

_BY_NUMBER = re.compile(r"([^/#]+)#(\d+)")
_SUGGESTED = 5


def find_sample(key: str, samples: Sequence[Sample]) -> Sample:
    """Return the sample with this key, or for ``TASK#N`` the N-th of a task, counted from 0.

    Raises ``ConfigError`` that names keys like it.
    """
    for sample in samples:
        if sample.key == key:
            return sample
    numbered = _BY_NUMBER.fullmatch(key)
    if numbered and numbered[1] in TASKS:
        of_task = [sample for sample in samples if sample.task == numbered[1]]
        if int(numbered[2]) < len(of_task):
            return of_task[int(numbered[2])]
        raise ConfigError(
            f"{key}: {numbered[1]} has {len(of_task):,} samples, which are counted from 0. "
            f"A sample's key has the form task/dataset/path#uniq_id"
        )
    keys = [sample.key for sample in samples]
    alike = [known for known in keys if key in known][:_SUGGESTED]
    alike = alike or difflib.get_close_matches(key, keys, n=_SUGGESTED, cutoff=0.6)
    said = f"there is no sample with the key {key!r}; a key has the form task/dataset/path#uniq_id, or TASK#N"
    raise ConfigError("\n  ".join([said + (". Near it are:" if alike else ""), *alike]))


def example(sample: Sample, samples: Sequence[Sample]) -> tuple[Json, Failure | None]:
    """Return the sample's form, and why its clip cannot be read where that is so.

    ``id`` is its place among the samples of its task, counted from 0, and ``group_id`` the same, since no
    sample is repeated. The format is that of the bytes, and of a clip that cannot be read that of its name.
    """
    header = measure(sample.audio_path)
    failure = header if isinstance(header, Failure) else None
    ending = sample.path.rpartition(".")[2].lower()
    is_mp3 = ending == "mp3" if isinstance(header, Failure) else header.format == "MP3"
    number = [other.key for other in samples if other.task == sample.task].index(sample.key)
    return {
        "input": [
            {
                "id": sample.digest[:8],
                "role": "user",
                "content": [
                    {"type": "audio", "audio": sample.audio_path, "format": "mp3" if is_mp3 else "wav"},
                    {"type": "text", "text": sample.question},
                ],
            }
        ],
        "target": sample.reference,
        "id": number,
        "group_id": number,
        "subset_key": sample.task,
        "metadata": {
            "uniq_id": sample.uniq_id,
            "task_name": sample.task,
            "dataset_name": sample.dataset,
            "category": TASKS[sample.task].category,
            "meta_info": sample.description,
            "question": sample.question,
        },
    }, failure
