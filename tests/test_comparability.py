"""Numbers of one run are of one thing: what may not change within a run, what may, and the ways on.

``RULES`` names the tests of every rule that the run directory keeps to. Those of this file are about the
identity of answers, verdicts and endpoints: each field of the fingerprint is changed alone, and each command
that a refusal prints is run as a process.
"""

from __future__ import annotations

import ast
import json
import os
import shlex
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from otoscope import TaskConfig, judge_runs, run_task
from otoscope.benchmark import BENCHMARK
from otoscope.cli import main
from otoscope.config import fingerprint, resolve
from otoscope.errors import RunDirectoryError
from otoscope.judge import PROMPT_SHA256
from otoscope.parsing import PARSER_VERSION
from otoscope.refusal import refusal
from otoscope.reports.html.method import method
from otoscope.reports.reported import Reported
from otoscope.runs import load_run
from tests.scripted_server import ScriptedServer
from tests.support import FAST, config, lines, otoscope, write_data

RULES: dict[str, str] = {
    # The folder and its lines.
    "--run-dir creates a run or continues it": "test_cli::test_a_killed_run_resumes_to_the_same_numbers",
    "without it a folder is named by time and model":
        "test_importing::test_new_runs_are_named_by_their_model",
    "--use-cache continues a run":
        "test_cli::test_a_whole_command_may_name_the_run_it_continues "
        "test_cli::test_a_refused_key_exits_4_and_says_how_to_resume",
    "a clash of keys names both": "test_dataset::test_a_duplicate_key_names_both_records",
    "a line keeps every reply and its facts": "test_store::test_every_field_is_read_back",
    "a verdict of a former answer is owed again":
        "test_store::test_a_verdict_of_a_former_answer_is_owed_again "
        "test_store::test_an_answer_edited_by_hand_is_judged_again",
    "the first success wins": "test_store::test_the_first_success_wins",
    "a failure never replaces a success": "test_store::test_a_failure_never_replaces_a_success",
    "unknown fields are ignored when reading": "test_store::test_unknown_fields_are_ignored",
    "unknown fields are kept when rewriting": "test_comparability::test_unknown_fields_outlive_a_resume",
    "a line is one write, before its slot is free":
        "test_store::test_a_line_is_one_write_to_an_append_descriptor "
        "test_store::test_a_line_is_in_the_file_before_append_returns",
    "only fsync is grouped, in a thread":
        "test_comparability::test_lines_are_synced_together_and_in_a_thread",
    "torn and foreign lines are owed again, and counted":
        "test_store::test_a_file_cut_at_any_byte_owes_exactly_the_rest "
        "test_store::test_foreign_lines_are_skipped_and_counted "
        "test_evaluation::test_torn_lines_are_owed_again_and_said",
    "SIGKILL loses nothing that was paid for":
        "test_cli::test_a_killed_run_resumes_to_the_same_numbers "
        "faults/test_killed::test_a_kill_at_a_random_moment_loses_only_calls_in_flight",
    # Failures.
    "failures are never results":
        "test_scoring::test_failures_never_change_a_mean "
        "test_evaluation::test_bad_clips_are_failures_by_name_and_stop_nothing",
    "passing kinds are owed again, lasting ones by name":
        "test_store::test_passing_failures_are_owed_again_and_lasting_ones_are_not "
        "test_evaluation::test_passing_failures_are_owed_again_and_lasting_ones_when_asked "
        "test_store::test_blank_answers_are_owed_again_only_by_name",
    "a mended cause is owed again":
        "test_store::test_a_mended_cause_is_owed_again "
        "test_evaluation::test_a_mended_clip_is_owed_again_and_an_unchanged_one_is_not",
    # What may not change.
    "a changed setting is refused by name":
        "test_comparability::test_a_field_that_changed_alone_is_refused",
    "every difference is named at once":
        "test_comparability::test_all_differences_are_named_with_both_values",
    "the printed commands go on":
        "test_comparability::test_a_field_that_changed_alone_is_refused "
        "test_comparability::test_both_urls_can_be_allowed_at_once",
    "what no line depends on may be corrected":
        "test_cli::test_a_mistyped_url_does_not_lock_an_empty_run "
        "test_evaluation::test_a_mistyped_judge_does_not_lock_the_answers",
    "a model's weights are its identity":
        "test_config::test_the_weights_behind_a_model_are_part_of_the_fingerprint "
        "test_comparability::test_other_weights_need_a_new_run",
    # What may.
    "what shapes nothing may change":
        "test_comparability::test_what_shapes_nothing_may_change "
        "test_config::test_what_changes_no_answer_is_no_change",
    "another selection is computed afresh":
        "test_evaluation::test_a_larger_selection_computes_only_what_is_new",
    "what is outside never enters a number":
        "test_store::test_done_and_owed_are_the_selection_wherever_a_file_is_cut "
        "test_cli::test_a_whole_command_may_name_the_run_it_continues",
    "a changed record or clip is owed again":
        "test_store::test_a_changed_record_is_owed_again "
        "test_evaluation::test_a_changed_record_or_clip_is_owed_again",
    "the SHA-256 of a touched clip decides":
        "test_store::test_a_changed_clip_is_owed_again "
        "test_evaluation::test_a_changed_record_or_clip_is_owed_again",
    # Endpoints.
    "without a revision another URL is refused":
        "test_comparability::test_a_field_that_changed_alone_is_refused",
    "an allowed URL is recorded and reported":
        "test_comparability::test_both_urls_can_be_allowed_at_once",
    "a revision is the identity":
        "test_evaluation::test_with_a_revision_the_url_is_free "
        "test_config::test_a_revision_is_an_endpoint_s_identity",
    "nothing but a URL can be allowed": "test_config::test_only_a_url_may_be_allowed_to_change",
    # Writers, judges, the summary.
    "one writer":
        "test_cli::test_two_writers_are_refused "
        "test_lock::test_a_killed_owner_is_followed_at_once "
        "test_lock::test_an_owner_elsewhere_is_judged_by_its_sign_of_life",
    "an owner whose lock was taken stops": "test_cli::test_whose_lock_was_taken_writes_nothing_more",
    "another judge gets a copy that names its source":
        "test_judge_runs::test_another_judge_judges_a_copy_and_leaves_the_source_alone",
    "a run without a judge is completed in place":
        "test_evaluation::test_answers_first_and_verdicts_later "
        "test_cli::test_answers_only_then_the_judge",
    "the summary is as its schema says, n/a null":
        "test_summary_schema::test_summaries_of_all_kinds_of_runs_are_as_the_schema_says",
}  # fmt: skip
"""What the run directory promises -> the tests that fail without it, as ``module::test``."""

KEYS = {"OTOSCOPE_API_KEY": "k", "OTOSCOPE_JUDGE_API_KEY": "k"}
TASK = ["speech_QA"]


@cache
def functions_of(module: str) -> set[str]:
    """Return the names of a test module's functions."""
    tree = ast.parse((Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_its_tests(rule: str) -> None:
    """What the table names is there to be run."""
    for name in RULES[rule].split():
        module, _, function = name.partition("::")
        assert function in functions_of(module), name


# --- what may not change ----------------------------------------------------------------------------------

Change = Callable[[TaskConfig], TaskConfig]


def given(**fields: Any) -> Change:
    """Return what sets fields of the settings."""
    return lambda settings: replace(settings, **fields)


def judge(**args: Any) -> Change:
    """Return what sets arguments of the judge."""
    return lambda settings: replace(settings, judge_model_args={**(settings.judge_model_args or {}), **args})


def data(**args: Any) -> Change:
    """Return what sets arguments of the data set."""

    def change(settings: TaskConfig) -> TaskConfig:
        there = (settings.dataset_args or {})[BENCHMARK]
        extra = {**there["extra_params"], **args.get("extra_params", {})}
        return replace(settings, dataset_args={BENCHMARK: {**there, **args, "extra_params": extra}})

    return change


def both(*changes: Change) -> Change:
    """Return one change after the other."""

    def change(settings: TaskConfig) -> TaskConfig:
        for one in changes:
            settings = one(settings)
        return settings

    return change


def older(name: str, value: Any) -> Callable[[Path], None]:
    """Return what makes a run one that an older version of Otoscope has judged."""

    def change(run: Path) -> None:
        manifest = manifest_of(run)
        manifest["fingerprint"]["judge"][name] = value
        (run / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")

    return change


@dataclass(frozen=True)
class Field:
    """One field of the fingerprint, and how it changes alone."""

    name: str
    change: Change = lambda settings: settings
    base: Change = lambda settings: settings
    """What the run was made with beside the usual."""
    as_process: bool = False
    """Whether its commands are run as processes: one of each kind is."""
    made_by: Callable[[Path], None] = lambda run: None
    """What becomes of the run before the settings meet it."""
    kept: bool = True
    """Whether there is a command that goes on with the old value."""
    copied: bool | None = None
    """Whether one has a copy judged with the new value; by default those of the judge."""
    case: str = ""

    @property
    def judges_anew(self) -> bool:
        """Whether a command has a copy of the answers judged."""
        return (
            self.name.startswith("judge.") and "api_url" not in self.name
            if self.copied is None
            else self.copied
        )


COOL = {**FAST, "temperature": 0}
FIELDS = [
    Field("model.name", given(model="another-model")),
    Field("model.revision", given(model_revision="v2")),
    Field("model.api_url", given(api_url="ELSEWHERE"), as_process=True),
    Field("model.parameters", given(generation_config={**FAST, "temperature": 1}), as_process=True),
    Field("model.extra_body", given(extra_body={"top_k": 5})),
    Field("model.extra_headers", given(extra_headers={"X-Variant": "b"})),
    Field(
        "model.extra_headers",
        given(extra_headers={"X-Variant": "b", "X-More": "c"}),
        base=given(extra_headers={"X-Variant": "b"}),
        case="of two",
    ),
    Field("prompt.template", data(prompt_template="{question} Be brief.")),
    Field("prompt.system", given(system_prompt="Be 'brief'.")),
    Field("prompt.part_order", given(part_order="text-first")),
    Field("prompt.audio_part", given(audio_part="audio_url")),
    Field("prompt.answer_filter", given(answer_filter="none")),
    Field("prompt.audio_policy", given(audio_policy="rate=16000")),
    Field("prompt.control", given(control="silence")),
    Field(
        "prompt.control",
        given(control="no-audio"),
        base=both(given(control="silence"), judge(extra_headers={"X-Variant": "a"})),
        as_process=True,
        case="with headers",
    ),
    Field("judge.name", judge(model_id="another-judge")),
    Field("judge.revision", judge(revision="v2")),
    Field("judge.revision", base=judge(revision="v1"), change=judge(revision=None), case="taken back"),
    Field("judge.api_url", judge(api_url="ELSEWHERE")),
    Field("judge.parameters", judge(generation_config={**FAST, "max_tokens": 512})),
    Field(
        "judge.parameters",
        base=judge(generation_config={**FAST, "top_p": 0.5}),
        as_process=True,
        change=judge(generation_config=FAST),
        case="taken back",
    ),
    Field("judge.extra_body", judge(extra_body={"top_k": 5})),
    Field(
        "judge.extra_body",
        base=judge(extra_body={"top_k": 5}),
        change=judge(extra_body={}),
        copied=False,
        case="taken back",
    ),
    Field("judge.extra_headers", judge(extra_headers={"X-Variant": "b"})),
    Field("judge.protocol", both(given(protocol="official"), judge(generation_config=COOL))),
    Field("judge.do_swap", data(extra_params={"do_swap": False})),
    Field(
        "judge.do_swap",
        base=data(extra_params={"do_swap": False}),
        change=data(extra_params={"do_swap": True}),
        copied=False,
        case="taken back",
    ),
    Field("judge.prompt_sha256", made_by=older("prompt_sha256", "0" * 64), kept=False),
    Field("judge.parser_version", made_by=older("parser_version", 0), kept=False, as_process=True),
]


class Scene:
    """Two servers, a small data set, and runs that owe one verdict, made once for each set of settings."""

    def __init__(self, folder: Path, server: ScriptedServer, elsewhere: ScriptedServer) -> None:
        self.server, self.elsewhere = server, elsewhere
        self._folder = folder
        self._made: dict[str, Path] = {}
        self._data = write_data(folder / "data", each=2, tasks=TASK)

    def settings(self, run: Path, change: Change) -> TaskConfig:
        """Return the usual settings, changed; ELSEWHERE stands for the second server's URL."""
        changed = change(config(self.server.url, self._data, run))
        args = changed.judge_model_args or {}
        if args.get("api_url") == "ELSEWHERE":
            changed = replace(changed, judge_model_args={**args, "api_url": self.elsewhere.url})
        return replace(changed, api_url=self.elsewhere.url) if changed.api_url == "ELSEWHERE" else changed

    def run(self, folder: Path, base: Change = lambda settings: settings) -> Path:
        """Return a run of its own in a folder, with all answers and all verdicts but one."""
        key = repr(self.settings(Path(), base).__dict__)
        if key not in self._made:
            made = self._made[key] = self._folder / f"made-{len(self._made)}"
            run_task(self.settings(made, base), environ={})
            verdicts = (made / "verdicts.jsonl").read_bytes().splitlines(keepends=True)
            (made / "verdicts.jsonl").write_bytes(b"".join(verdicts[:-1]))
        run = folder / "a run"
        shutil.copytree(self._made[key], run)
        self.server.reset()
        self.elsewhere.reset()
        return run

    def asked(self, kind: str) -> int:
        """Return how many requests of a kind both servers got since the last run was given."""
        return sum(seen.kind == kind for server in (self.server, self.elsewhere) for seen in server.requests)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Give the servers and the runs."""
    with ScriptedServer() as server, ScriptedServer() as elsewhere:
        yield Scene(tmp_path_factory.mktemp("scene"), server, elsewhere)


def manifest_of(run: Path) -> dict[str, Any]:
    """Return a run's manifest."""
    return dict(json.loads((run / "manifest.json").read_text(encoding="utf-8")))


def at(run: Path, name: str) -> Any:
    """Return what the fingerprint of a run says of a field."""
    part, _, inner = name.partition(".")
    return manifest_of(run)["fingerprint"][part].get(inner)


def commands(message: str) -> list[list[str]]:
    """Return the commands that a message prints, as words without the program's name."""
    return [shlex.split(line)[1:] for line in message.splitlines() if line.startswith("  otoscope ")]


def carry_out(words: list[str], *, as_process: bool = False) -> None:
    """Carry a printed command out, with the keys in the environment: as a process, or as one would."""
    if as_process:
        done = otoscope(*words, environ=KEYS)
        assert done.returncode == 0, done.stderr
    else:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in KEYS.items():
                patch.setenv(name, value)
            assert main([*words, "--no-html"]) == 0


def print_of(settings: TaskConfig) -> dict[str, Any]:
    """Return the fingerprint of settings."""
    resolved = resolve(settings, {})
    return fingerprint(resolved, judge_prompt_sha256=PROMPT_SHA256, parser_version=PARSER_VERSION)


def refused(settings: TaskConfig) -> str:
    """Return what is said of settings that a run refuses."""
    with pytest.raises(RunDirectoryError) as caught:
        run_task(settings, environ={})
    assert caught.value.exit_code == 6
    return str(caught.value)


def test_every_field_of_the_fingerprint_is_changed_below(scene: Scene, tmp_path: Path) -> None:
    """A field that is new in the fingerprint needs its row; weights belong to models in the process."""
    fingerprint = manifest_of(scene.run(tmp_path))["fingerprint"]
    there = {f"{part}.{name}" for part in fingerprint for name in fingerprint[part]}
    assert {one.name for one in FIELDS} == there


@pytest.mark.parametrize("one", FIELDS, ids=lambda one: f"{one.name} {one.case}".strip())
def test_a_field_that_changed_alone_is_refused(scene: Scene, tmp_path: Path, one: Field) -> None:
    """It is named with both values, nothing is sent or written, and the printed commands do go on."""
    run = scene.run(tmp_path, one.base)
    one.made_by(run)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    asked_for = both(one.base, one.change)
    message = refused(scene.settings(run, asked_for))
    part, _, name = one.name.partition(".")
    old, new = at(run, one.name), print_of(scene.settings(run, asked_for))[part][name]
    assert [line for line in message.splitlines() if ": was " in line] == [
        f"  {one.name}: was {old!r}, now {new!r}"
    ]
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    scene.server.reset()
    scene.elsewhere.reset()
    printed = commands(message)
    copying = [words for words in printed if words[0] == "judge"]
    going_on = [words for words in printed if words[0] == "eval"]
    assert (len(going_on), len(copying)) == (one.kept, one.judges_anew)
    assert (_says_new_run(message)) == (not one.judges_anew and "api_url" not in one.name)
    for words in copying:
        carry_out(words, as_process=one.as_process)
        (copy,) = tmp_path.glob("a run--judged-*")
        assert at(copy, one.name) == new
        assert load_run(copy).summary.counts["scored"] == 2
        assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    scene.server.reset()
    for words in going_on:
        carry_out(words, as_process=one.as_process)
        assert (scene.asked("model"), scene.asked("judge")) == (0, 1)
        assert load_run(run).summary.counts["scored"] == 2
        assert at(run, one.name) == (new if "api_url" in one.name else old)


def _says_new_run(message: str) -> bool:
    return "start a new run: the command that made this one, with them and another --run-dir" in message


def test_all_differences_are_named_with_both_values(scene: Scene, tmp_path: Path) -> None:
    """Model, prompt and judge at once: each is a line, and the way on is the old values, URL included."""
    run = scene.run(tmp_path)
    change = both(
        given(generation_config={**FAST, "temperature": 1}, system_prompt="Be brief.", api_url="ELSEWHERE"),
        judge(model_id="another-judge", revision="v2"),
    )
    message = refused(scene.settings(run, change))
    cold, warm = {"temperature": 0, "max_tokens": 2048}, {"temperature": 1, "max_tokens": 2048}
    assert [line.strip() for line in message.splitlines() if ": was " in line] == [
        f"model.api_url: was {scene.server.url!r}, now {scene.elsewhere.url!r}",
        f"model.parameters: was {cold}, now {warm}",
        "prompt.system: was None, now 'Be brief.'",
        "judge.name: was 'scripted-judge', now 'another-judge'",
        "judge.revision: was None, now 'v2'",
    ]
    assert _says_new_run(message)
    ((*words,),) = commands(message)
    assert words == ["eval", "--use-cache", str(run), "--api-url", scene.server.url]
    carry_out(words)
    assert (scene.asked("model"), scene.asked("judge"), len(scene.elsewhere.requests)) == (0, 1, 0)


def test_an_address_from_the_environment_is_gainsaid_by_the_command(scene: Scene, tmp_path: Path) -> None:
    """Where a variable moved the model, the command to go on with the old values names the old URL."""
    run = scene.run(tmp_path)
    environ = {"OTOSCOPE_API_URL": scene.elsewhere.url}
    asked_for = TaskConfig(use_cache=str(run), answer_filter="none", no_judge=True)
    with pytest.raises(RunDirectoryError) as caught:
        run_task(asked_for, environ=environ)
    assert "model.api_url: was" in str(caught.value)
    assert "prompt.answer_filter: was 'strip-thinking', now 'none'" in str(caught.value)
    (words,) = commands(str(caught.value))
    assert words[-1] == "--no-judge"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTOSCOPE_API_URL", scene.elsewhere.url)
        carry_out(words)
    assert scene.elsewhere.requests == []


def test_both_urls_can_be_allowed_at_once(scene: Scene, tmp_path: Path) -> None:
    """One command names both; the changes are recorded, and the report lists the endpoints."""
    run = scene.run(tmp_path)
    message = refused(scene.settings(run, both(given(api_url="ELSEWHERE"), judge(api_url="ELSEWHERE"))))
    (words,) = commands(message)
    assert "add --allow-changed model.api_url --allow-changed judge.api_url to the command" in message
    carry_out(words, as_process=True)
    assert scene.server.requests == []
    here, there = scene.server.url, scene.elsewhere.url
    assert manifest_of(run)["allowed_changes"] == [
        {"field": f"{role}.api_url", "from": here, "to": there} for role in ("model", "judge")
    ]
    listed = {
        entry for _, facts in method(Reported.of(load_run(run))) for one in facts for entry in one.entries
    }
    assert {here, there} <= listed


def test_one_allowed_url_leaves_the_other_refused(scene: Scene, tmp_path: Path) -> None:
    """The message names what is still refused, and its command allows both."""
    run = scene.run(tmp_path)
    change = both(given(api_url="ELSEWHERE", allow_changed=["model.api_url"]), judge(api_url="ELSEWHERE"))
    message = refused(scene.settings(run, change))
    assert [line.partition(":")[0].strip() for line in message.splitlines() if ": was " in line] == [
        "judge.api_url"
    ]
    carry_out(commands(message)[0])
    assert at(run, "model.api_url") == at(run, "judge.api_url") == scene.elsewhere.url


def test_a_judge_that_moved_is_gone_on_with_by_judging(scene: Scene, tmp_path: Path) -> None:
    """``otoscope judge`` prints its own command, which asks nothing of the model."""
    run = scene.run(tmp_path)
    moved = {"model_id": "scripted-judge", "api_url": scene.elsewhere.url, "api_key": "k"}
    with pytest.raises(RunDirectoryError) as caught:
        judge_runs([run], TaskConfig(judge_model_args=moved), environ={})
    (words,) = commands(str(caught.value))
    assert words[:2] == ["judge", str(run)]
    carry_out(words)
    assert (scene.asked("model"), len(scene.elsewhere.requests)) == (0, 1)


def test_a_secret_in_a_url_is_left_to_be_filled_in(scene: Scene, tmp_path: Path) -> None:
    """What is not stored stands in the command as asterisks, and neither message nor run tells it."""
    run = scene.run(tmp_path, base=lambda one: replace(one, api_url=f"{one.api_url}?sig=hush"))
    message = refused(
        scene.settings(run, both(given(api_url=f"{scene.server.url}?sig=hush", answer_filter="none")))
    )
    assert "hush" not in message
    (words,) = commands(message)
    assert words[-2:] == ["--api-url", f"{scene.server.url}?sig=***"]
    carry_out([*words[:-1], words[-1].replace("***", "hush")])


def test_other_weights_need_a_new_run(tmp_path: Path) -> None:
    """Old weights are no setting: nothing that could not work is advised."""
    settings = resolve(config("http://127.0.0.1:9/v1", tmp_path, tmp_path / "run"), {})
    changes = {"model.weights": ({"a": "1"}, {"a": "2"})}
    message = refusal(tmp_path / "run", {}, settings, changes, answers_too=True)
    assert "model.weights: was {'a': '1'}, now {'a': '2'}" in message
    assert commands(message) == []
    assert "only another version of Otoscope" in message
    assert _says_new_run(message)


# --- what may change --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        given(api_key="renewed"),
        judge(api_key="renewed"),
        given(eval_batch_size=1, judge_batch_size=2, rpm=600, tpm=1e6),
        given(stream=True),
        given(generation_config={"retry_interval": 0.02, "timeout": 5, "retries": 1}),
        given(label="another", tags={"step": "2"}, min_coverage=0.1),
        given(seed=7, limit=2),
        given(shuffle=True),
        data(extra_params={"tasks": ["speech"]}),
        data(subset_list=TASK),
        given(follow_links=True),
    ],
)
def test_what_shapes_nothing_may_change(scene: Scene, tmp_path: Path, change: Change) -> None:
    """Keys, speed, names and selection: the run goes on, and asks for the one verdict that it owes."""
    run = scene.run(tmp_path)
    done = run_task(scene.settings(run, change), environ={})
    assert done.summary.counts["scored"] == 2
    assert (scene.asked("model"), scene.asked("judge")) == (0, 1)


def test_unknown_fields_outlive_a_resume(scene: Scene, tmp_path: Path) -> None:
    """What a later version wrote into manifest and lines is there after this one went on, and in a copy."""
    run = scene.run(tmp_path)
    (run / "manifest.json").write_text(json.dumps({**manifest_of(run), "later": {"x": 1}}), encoding="utf-8")
    marked = [{**line, "later": [1]} for line in lines(run / "answers.jsonl")]
    (run / "answers.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in marked), encoding="utf-8")
    run_task(scene.settings(run, given(label="new")), environ={})
    other = {"model_id": "another-judge", "api_url": scene.server.url, "api_key": "k"}
    (copy,) = judge_runs([run], TaskConfig(judge_model_args=other), environ={})
    assert (manifest_of(run)["label"], manifest_of(run)["later"]) == ("new", {"x": 1})
    for folder in (run, copy.path):
        assert [line["later"] for line in lines(folder / "answers.jsonl")] == [[1], [1]]


def test_lines_are_synced_together_and_in_a_thread(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line is synced before the run ends, and no sync holds up the thread that sends and writes."""
    written: list[int] = []
    synced: list[tuple[int, int]] = []
    write, fsync = os.write, os.fsync

    def counted(descriptor: int, data: bytes) -> int:
        if data.startswith(b'{"run"'):
            written.append(threading.get_ident())
        return write(descriptor, data)

    def noted(descriptor: int) -> None:
        synced.append((threading.get_ident(), len(written)))
        fsync(descriptor)

    monkeypatch.setattr(os, "write", counted)
    monkeypatch.setattr(os, "fsync", noted)
    data_set = write_data(tmp_path / "data", each=20, tasks=TASK)
    run_task(config(scene.server.url, data_set, tmp_path / "run"), environ={})
    (writer,) = set(written)
    assert len(written) == 60
    between = [thread for thread, count in synced if 0 < count < len(written)]
    assert writer not in between
    assert len(between) < len(written) / 2
    assert synced[-1][1] == len(written)
