"""The fields of TaskConfig as keywords, for whoever checks the types of a call."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, TypedDict


class TaskSettings(TypedDict, total=False):
    """The fields of :class:`TaskConfig`, but for those that functions take under names of their own."""

    model_args: dict[str, Any] | None
    engine: str | None
    ray_address: str | None
    ray_workers: int | None
    gpus_per_model: float | None
    provider: str | None
    api_url: str | Sequence[str] | None
    api_key: str | None
    api_key_file: str | PathLike[str] | None
    ca_file: str | PathLike[str] | None
    model_revision: str | None
    datasets: list[str] | None
    dataset_args: dict[str, Any] | None
    dataset_hub: str | None
    dataset_dir: str | PathLike[str] | None
    follow_links: bool | None
    judge_model_args: dict[str, Any] | None
    generation_config: dict[str, Any] | None
    extra_body: dict[str, Any] | None
    extra_headers: dict[str, str] | None
    stream: bool | None
    eval_batch_size: int | None
    judge_batch_size: int | None
    rpm: float | None
    tpm: float | None
    judge_price: str | Sequence[float] | None
    max_judge_calls: int | None
    max_judge_tokens: float | None
    max_cost: float | None
    wait_ready: float | None
    limit: int | float | None
    shuffle: bool | None
    seed: int | None
    shard: str | None
    protocol: str | None
    system_prompt: str | None
    part_order: str | None
    audio_part: str | None
    audio_policy: str | None
    control: str | None
    audio_cache_size: float | None
    answer_filter: str | None
    no_judge: bool | None
    judge_blank: bool | None
    work_dir: str | PathLike[str] | None
    run_dir: str | PathLike[str] | None
    use_cache: str | PathLike[str] | None
    label: str | None
    tags: dict[str, str] | None
    min_coverage: float | None
    retry_failed: list[str] | None
    allow_changed: list[str] | None
    take_over: bool | None
    weights: str | PathLike[str] | None
    track: list[str] | None
