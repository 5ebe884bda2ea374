"""What carries out the calls of a model that is no server's."""

from __future__ import annotations

from collections.abc import Mapping

from otoscope.choices import ENGINES
from otoscope.config.checks import checked_choice, checked_integer, checked_number
from otoscope.config.defaults import LOCAL_RAY
from otoscope.config.settings import RaySettings
from otoscope.config.task import TaskConfig
from otoscope.errors import ConfigError

_OF_RAY = ("ray_address", "ray_workers", "gpus_per_model")


def ray_settings(config: TaskConfig, environ: Mapping[str, str]) -> RaySettings | None:
    """Resolve the engine; ``None`` for threads of this process. Raises ``ConfigError``."""
    if config.engine is None:
        if given := [name for name in _OF_RAY if getattr(config, name) is not None]:
            raise ConfigError(f"{', '.join(given)} would have no effect without --engine ray")
        return None
    checked_choice(config.engine, ENGINES, "engine")
    gpus, workers = config.gpus_per_model, config.ray_workers
    if gpus is not None:
        checked_number(gpus, "gpus_per_model", low=0.0, high=1e6)
        if gpus > 1 and gpus != int(gpus):
            raise ConfigError(f"gpus_per_model: {gpus:g} must be a whole number, or a fraction below 1")
        if 0 < gpus < _LEAST_SHARE:
            raise ConfigError(f"gpus_per_model: {gpus:g}: Ray has no smaller share than {_LEAST_SHARE:g}")
    if workers is not None:
        checked_integer(workers, "ray_workers", low=1)
    address = config.ray_address or environ.get("RAY_ADDRESS") or LOCAL_RAY
    if "://" in address:
        raise ConfigError(
            f"ray_address: {address}: Otoscope has to run on a machine of the cluster: there, or as a job of "
            "Ray (ray job submit), --ray-address auto joins it"
        )
    return RaySettings(address=address, gpus=None if gpus is None else float(gpus), workers=workers)


_LEAST_SHARE = 1e-4


def refuse_engine(config: TaskConfig) -> None:
    """Refuse an engine for a model that this process does not ask itself. Raises ``ConfigError``."""
    given = [name for name in ("engine", *_OF_RAY) if getattr(config, name) is not None]
    if given:
        raise ConfigError(
            f"{', '.join(given)}: the model {config.model!r} is asked by no engine of ours: that is for one "
            "in Python (--model file.py:NAME), which may load weights. Of a server, --eval-batch-size says "
            "how many requests it gets"
        )
