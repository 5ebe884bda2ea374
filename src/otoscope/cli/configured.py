"""What ``eval`` is asked for: flags, laid over a file of settings where there is one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from otoscope.benchmark import BENCHMARK
from otoscope.cli.arguments import task_config
from otoscope.config import TaskConfig, open_to_others, origin_of
from otoscope.config.layers import OF_ALL_MODELS, Layer, Origin, Place, at
from otoscope.config.variables import replacing
from otoscope.errors import ConfigError
from otoscope.opening import settings_for
from otoscope.secrecy import looks_real, secrets_in
from otoscope.shell import shell_command

if TYPE_CHECKING:
    from otoscope.config import Settings
    from otoscope.config.files import SettingsFile

_OF_ONE_MODEL: tuple[Place, ...] = tuple(
    (name,) for name in "api_url api_key api_key_file model_revision label run_dir use_cache".split()
)
"""What cannot be replaced for several models at once, where the file says it for each."""

_OF_JUDGING = (
    "judge_model judge_model_args judge_batch_size judge_price protocol ca_file wait_ready max_judge_calls "
    "max_judge_tokens max_cost judge_blank min_coverage retry_failed"
).split()
"""What ``judge`` takes from a file: where runs are made is about those that answer."""
_SWAP: Place = ("dataset_args", BENCHMARK, "extra_params", "do_swap")


@dataclass(frozen=True, slots=True)
class Asked:
    """One run that is asked for."""

    config: TaskConfig
    file: Path | None
    title: str
    """The model's label or name."""
    chosen: bool
    """Whether the file has several models to choose from by ``--model``."""

    def settings(self, environ: Mapping[str, str]) -> Settings:
        """Resolve the settings. Raises ``ConfigError`` that says of which model of which file it is."""
        try:
            return settings_for(self.config, environ)
        except ConfigError as error:
            located = str(error).startswith(f"{self.file}:")
            if self.file is None or located or origin_of(error, self.config.layer) is not None:
                raise
            raise ConfigError(f"{self.file}: {self.title}: {error}") from None


def asked_for(
    args: argparse.Namespace, file: SettingsFile | None, environ: Mapping[str, str]
) -> Sequence[Asked]:
    """Return the runs that flags and file ask for. Raises ``ConfigError``."""
    flags = task_config(args).layer
    if file is None:
        return [Asked(TaskConfig.from_layer(flags), None, str(flags.values.get("model") or ""), chosen=False)]
    if file.several and (name := flags.values.get("model")):
        file = file.named(name)
        flags = Layer({key: value for key, value in flags.values.items() if key != "model"}, flags.origins)
    if len(file.models) > 1:
        _refuse_one_for_all(file, flags, environ)
    return [
        Asked(_asked(flags.over(one)), file.path, file.title(one), chosen=file.several) for one in file.models
    ]


def _asked(layer: Layer) -> TaskConfig:
    """Return settings without a file's limits for the judge where none is asked: they are for later, then."""
    values = dict(layer.values)
    for name in OF_ALL_MODELS:
        origin = layer.origins.get((name,))
        if values.get("no_judge") and origin is not None and origin.kind == "file":
            del values[name]
    return TaskConfig.from_layer(Layer(values, layer.origins))


def settings_file(args: argparse.Namespace) -> SettingsFile | None:
    """Return what the file of ``--config`` says. Raises ``ConfigError``."""
    if getattr(args, "config", None) is None:
        return None
    from otoscope.config.files import read_settings

    return read_settings(Path(args.config).expanduser())


def of_judge(file: SettingsFile) -> Layer:
    """Return what a file says of the judge, and of how judging goes, for all of its models."""
    values = {name: file.common.values[name] for name in _OF_JUDGING if name in file.common.values}
    swap = at(file.common.values, _SWAP)
    if swap is not None:
        values["dataset_args"] = {_SWAP[1]: {_SWAP[2]: {_SWAP[3]: swap}}}
    return Layer(values, file.common.origins)


def file_secrets(file: SettingsFile) -> Iterator[str]:
    """Yield the keys that a file holds itself."""
    for layer in (file.common, *file.models):
        yield from secrets_in(layer.values)


def warning_of_file(file: SettingsFile) -> str | None:
    """Return one line about a file that holds a key and that others may read, or ``None``."""
    if open_to_others(file.path) and any(map(looks_real, file_secrets(file))):
        mended = shell_command(["chmod", "600", str(file.path)])
        return f"otoscope: others than its owner may read {file.path}, which holds a key: {mended}"
    return None


def _refuse_one_for_all(file: SettingsFile, flags: Layer, environ: Mapping[str, str]) -> None:
    """Refuse a flag or variable that takes the place of what the file says for each of its models."""
    for place in _OF_ONE_MODEL:
        name = place[0]
        in_file = {str(layer.values.get(name)) for layer in file.models}
        origin = flags.origins.get(place) or _variable(file, place, environ)
        of_one_run = name in ("run_dir", "use_cache")
        if origin is not None and (len(in_file) > 1 or of_one_run):
            raise ConfigError(
                f"{origin.name}: would give the {len(file.models)} models of {file.path} one {name}"
                f"{'' if of_one_run else ', which it says for each'}. Choose one with --model NAME "
                f"({', '.join(repr(file.title(one)) for one in file.models)}), or leave it out"
            )


def _variable(file: SettingsFile, place: Place, environ: Mapping[str, str]) -> Origin | None:
    for layer in file.models:
        origin = layer.origins.get(place)
        if origin is not None and (variable := replacing(place, origin, environ)):
            return Origin("environment", variable)
    return None
