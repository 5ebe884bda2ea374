"""Stored answers judged: by the judge they wait for, or by another one; one run, or many together."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otoscope import TaskConfig, judge_runs, load_run, run_task
from otoscope.errors import ConfigError, EndpointError, RunDirectoryError
from otoscope.judging import Owed, Skipped, Unusable, look
from otoscope.lock import RunLock
from otoscope.records import Event, Judged, Order
from tests.foreign_files import batch_output, chat_result, metadata, write_lines
from tests.scripted_server import Response, ScriptedServer, Seen, delayed, scripted_answers
from tests.support import FAST, command, config, environment, lines, otoscope, write_data
from tests.support import flags as eval_flags

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")

KEY = {"OTOSCOPE_JUDGE_API_KEY": "k"}


def judge(url: str, name: str = "other-judge", **more: Any) -> TaskConfig:
    """Return settings that name a judge behind a scripted server."""
    args = {"model_id": name, "api_url": url, "api_key": "k", "generation_config": FAST}
    return TaskConfig(judge_model_args={**args, **more.pop("judge_args", {})}, **more)


def flags(url: str, name: str = "other-judge") -> list[str]:
    """Return the same as flags of the command, with the key left to the environment."""
    return ["--judge-model", name, "--judge-api-url", url]


def numbers(run: Path) -> dict[str, Any]:
    """Return the numbers of a run's summary, without times and places."""
    stored = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    kept = ("counts", "average", "mixed_audio", "categories", "tasks", "datasets", "all_samples", "position")
    return {name: stored[name] for name in kept}


def files(run: Path) -> dict[str, bytes]:
    """Return every file of a run."""
    return {path.name: path.read_bytes() for path in sorted(run.iterdir()) if path.is_file()}


def manifest(run: Path) -> dict[str, Any]:
    """Return a run's manifest."""
    return dict(json.loads((run / "manifest.json").read_text(encoding="utf-8")))


def copy_of(run: Path, name: str = "other-judge") -> Path:
    """Return the run over a copy of the answers of ``run`` that lies beside it."""
    (found,) = run.parent.glob(f"{run.name}--judged-by-{name}-*")
    return found


def asked_of_judge(server: ScriptedServer) -> list[Seen]:
    """Return the requests that judges got."""
    return [seen for seen in server.requests if seen.kind == "judge"]


def paid(server: ScriptedServer) -> Counter[str]:
    """Return how often each of the judge's requests was answered."""
    return Counter(seen.digest for seen in asked_of_judge(server) if seen.status == 200)


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def answered_runs(server: ScriptedServer, folder: Path, count: int, *, each: int = 2) -> list[Path]:
    """Make runs with answers of their own, and no verdicts."""
    runs = []
    data = write_data(folder / "data", each=each)
    for number in range(count):
        server.script = scripted_answers(salt=f"model {number}")
        name = f"scripted-model-{number}"
        settings = config(server.url, data, folder / f"run-{number}", no_judge=True, model=name)
        runs.append(run_task(replace(settings, label=f"model {number}", tags={"n": str(number)})).path)
    server.script = scripted_answers()
    server.reset()
    return runs


@pytest.fixture
def judged_run(tmp_path: Path) -> Path:
    """Give a run that a first judge has judged."""
    data = write_data(tmp_path / "data", each=2)
    with ScriptedServer() as server:
        settings = config(
            server.url, data, tmp_path / "run", judge_args={"revision": "r1", "extra_body": {"x": 1}}
        )
        run_task(replace(settings, label="the label", tags={"a": "b"}))
    return tmp_path / "run"


# --- another judge ----------------------------------------------------------------------------------------


def test_another_judge_judges_a_copy_and_leaves_the_source_alone(judged_run: Path) -> None:
    """The new run has the same answers byte for byte, names its source, and inherits nothing of its judge."""
    before = files(judged_run)
    with ScriptedServer(scripted_answers(salt="b")) as server:
        done = otoscope("judge", str(judged_run), *flags(server.url), environ=KEY)
        assert done.returncode == 0, done.stderr
        assert len(asked_of_judge(server)) == len(server.requests) == 32
        assert {seen.model for seen in server.requests} == {"other-judge"}
        assert all("x" not in seen.payload for seen in server.requests)
    assert files(judged_run) == before
    copy = copy_of(judged_run)
    assert (copy / "answers.jsonl").read_bytes() == before["answers.jsonl"]
    source, made = manifest(judged_run), manifest(copy)
    assert made["answers_from"]["run_id"] == source["run_id"] != made["run_id"]
    assert (copy / made["answers_from"]["path"]).resolve() == judged_run.resolve()
    for name in ("label", "tags", "dataset", "selection"):
        assert made[name] == source[name]
    assert made["fingerprint"]["model"] == source["fingerprint"]["model"]
    assert made["fingerprint"]["judge"]["revision"] is None
    assert made["fingerprint"]["judge"]["extra_body"] == {}
    assert numbers(copy)["counts"]["scored"] == 16
    assert numbers(copy)["average"] != numbers(judged_run)["average"]
    plain = " ".join(done.stderr.split())
    assert "32 verdicts to ask for" in plain
    assert "32 verdicts, over a copy" in plain
    assert copy.name in "".join(done.stdout.split())


def test_the_same_command_again_sends_and_writes_nothing(judged_run: Path) -> None:
    """A run that this judge has judged is skipped, by its source, by itself, and with the judge it had."""
    with ScriptedServer() as server:
        assert otoscope("judge", str(judged_run), *flags(server.url), environ=KEY).returncode == 0
        copy = copy_of(judged_run)
        before = files(judged_run) | {f"copy {name}": data for name, data in files(copy).items()}
        server.reset()
        for words in (
            [str(judged_run), *flags(server.url)],
            [str(copy)],
            [str(copy), str(judged_run), *flags(server.url)],
            [str(judged_run)],
        ):
            again = otoscope("judge", *words, environ=KEY)
            assert again.returncode == 0, again.stderr
            said = " ".join(again.stderr.split())  # a long path moves where lines are broken
            assert "already judged by" in said
            assert "nothing to ask for" in said
            assert "finished" not in said
            assert again.stdout.count(" on AIR-Bench Chat") == 1
        assert server.requests == []
    assert before == files(judged_run) | {f"copy {name}": data for name, data in files(copy).items()}
    assert len(list(judged_run.parent.iterdir())) == 3


def test_a_skipped_run_with_low_coverage_still_says_so(tmp_path: Path) -> None:
    """Nothing is asked again, but the exit code is that of the coverage, as it was the first time."""
    with ScriptedServer() as server:
        (run,) = answered_runs(server, tmp_path, 1, each=1)
        refusal = {"message": "filtered", "code": "content_filter"}
        server.script = lambda seen, attempt: (
            Response(status=400, error=refusal)
            if "'tone': 3" in seen.text
            else scripted_answers()(seen, attempt)
        )
        first = otoscope("judge", str(run), *flags(server.url), environ=KEY)
        assert first.returncode == 1, first.stderr
        server.reset()
        again = otoscope("judge", str(run), environ=KEY)
        assert again.returncode == 1
        assert server.requests == []
        assert f"otoscope judge {run} --retry-failed content_filter" in again.stderr
        server.script = scripted_answers()
        retried = otoscope("judge", str(run), "--retry-failed", "content_filter", environ=KEY)
        assert retried.returncode == 0, retried.stderr
        assert len(server.requests) == 2


def test_a_difference_in_how_the_judge_is_asked_makes_it_another_one(judged_run: Path) -> None:
    """The same name under another protocol is a copy, which keeps what was not given of the stored judge."""
    with ScriptedServer(scripted_answers(salt="c")) as server:
        again = TaskConfig(protocol="official", judge_model_args={"api_key": "k", "api_url": server.url})
        (run,) = judge_runs([judged_run], again, environ={})
    asked = manifest(run.path)["fingerprint"]["judge"]
    assert run.path == copy_of(judged_run, "scripted-judge")
    assert (asked["protocol"], asked["revision"], asked["extra_body"]) == ("official", "r1", {"x": 1})
    with ScriptedServer() as server:
        (again_run,) = judge_runs([run.path], TaskConfig(judge_model_args={"api_key": "k"}), environ={})
        assert server.requests == []
    assert again_run.path == run.path


def test_only_another_url_of_the_same_judge_is_refused(tmp_path: Path) -> None:
    """A judge behind another address is no other judge: refused by name, until it is allowed."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server, ScriptedServer() as elsewhere:
        run = run_task(config(server.url, data, tmp_path / "run")).path
        stored = (run / "verdicts.jsonl").read_bytes().splitlines(keepends=True)
        (run / "verdicts.jsonl").write_bytes(b"".join(stored[:5]))
        words = ["judge", str(run), "--judge-api-url", elsewhere.url]
        refused = otoscope(*words, environ=KEY)
        assert refused.returncode == 6
        assert "--allow-changed judge.api_url" in refused.stderr
        assert "--judge-revision" in refused.stderr
        assert "--model-revision" not in refused.stderr
        assert elsewhere.requests == []
        done = otoscope(*words, "--allow-changed", "judge.api_url", environ=KEY)
        assert done.returncode == 0, done.stderr
        assert len(elsewhere.requests) == 11
    assert len(list(tmp_path.iterdir())) == 2


def test_answers_that_came_later_are_judged_and_no_verdict_is_lost(tmp_path: Path) -> None:
    """When the source has more answers, the copy is renewed, and only what is new is asked for."""
    data = write_data(tmp_path / "data", each=3)
    with ScriptedServer() as server:
        run = run_task(config(server.url, data, tmp_path / "run", limit=1)).path
        (first,) = judge_runs([run], judge(server.url), environ={})
        verdicts = (first.path / "verdicts.jsonl").read_bytes()
        run_task(config(server.url, data, tmp_path / "run", limit=2))
        server.reset()
        (second,) = judge_runs([run], judge(server.url), environ={})
        assert len(server.requests) == len(asked_of_judge(server)) == 16
    assert second.path == first.path
    assert second.summary.counts["scored"] == 16
    assert (second.path / "answers.jsonl").read_bytes() == (run / "answers.jsonl").read_bytes()
    assert (second.path / "verdicts.jsonl").read_bytes().startswith(verdicts)
    assert manifest(second.path)["run_id"] == manifest(first.path)["run_id"]
    assert manifest(second.path)["selection"]["limit"] == 2


def test_a_copy_that_was_cut_off_while_it_was_made_is_made_good(judged_run: Path) -> None:
    """Whatever of a copy was there when the process was killed, the next call has it whole."""
    with ScriptedServer() as server:
        (whole,) = judge_runs([judged_run], judge(server.url), environ={})
        for missing in (
            ["answers.jsonl", "samples.jsonl", "verdicts.jsonl", "summary.json"],
            ["samples.jsonl"],
        ):
            for name in missing:
                (whole.path / name).unlink()
            stored = manifest(whole.path)
            stored["answers_from"]["sha256"] = None
            (whole.path / "manifest.json").write_text(json.dumps(stored), encoding="utf-8")
            (whole.path / ".answers.jsonl.tmp").write_bytes(b"{")
            (run,) = judge_runs([judged_run], judge(server.url), environ={})
            assert run.summary.to_json()["average"] == whole.summary.to_json()["average"]
            assert (run.path / "answers.jsonl").read_bytes() == (judged_run / "answers.jsonl").read_bytes()
        shutil.rmtree(whole.path)
        whole.path.mkdir()
        (whole.path / ".answers.jsonl.tmp").write_bytes(b"{")
        (run,) = judge_runs([judged_run], judge(server.url), environ={})
    assert run.summary.counts["scored"] == 16


def test_a_copy_with_answers_of_its_own_is_not_written_over(tmp_path: Path) -> None:
    """Answers that were asked for in the copy are paid for: renewing it is refused, and loses none."""
    data = write_data(tmp_path / "data", each=3)
    with ScriptedServer() as server:
        run = run_task(config(server.url, data, tmp_path / "run", limit=1)).path
        (copy,) = judge_runs([run], judge(server.url), environ={})
        own = config(
            server.url, data, judge_args={"model_id": "other-judge"}, limit=2, use_cache=str(copy.path)
        )
        assert run_task(own).summary.counts["scored"] == 16
        run_task(config(server.url, data, tmp_path / "run", limit=3))
        before = files(copy.path)
        with pytest.raises(RunDirectoryError, match="answers of its own"):
            judge_runs([run], judge(server.url), environ={})
        after = files(copy.path)
    assert (after["answers.jsonl"], after["verdicts.jsonl"]) == (
        before["answers.jsonl"],
        before["verdicts.jsonl"],
    )


def test_a_torn_last_line_is_copied_as_it_is(judged_run: Path) -> None:
    """A source whose last answer is half a line is copied byte for byte; the others are judged."""
    answers = judged_run / "answers.jsonl"
    answers.write_bytes(answers.read_bytes()[:-40])
    torn = answers.read_bytes()
    with ScriptedServer() as server:
        done = otoscope("judge", str(judged_run), *flags(server.url), environ=KEY)
        assert done.returncode == 1, done.stderr
        assert len(server.requests) == 30
        again = otoscope("judge", str(judged_run), *flags(server.url), environ=KEY)
        assert again.returncode == 1
        assert len(server.requests) == 30
    assert answers.read_bytes() == torn
    assert (copy_of(judged_run) / "answers.jsonl").read_bytes() == torn
    assert numbers(copy_of(judged_run))["counts"]["pending"] == 1


def test_a_copy_of_a_copy_and_back_to_the_first_judge(judged_run: Path) -> None:
    """A copy is judged like any run: the chain of sources is kept; the first judge says the same again."""
    with ScriptedServer(scripted_answers(salt="b")) as server:
        (second,) = judge_runs([judged_run], judge(server.url), environ={})
    with ScriptedServer(scripted_answers()) as server:
        (third,) = judge_runs([second.path], judge(server.url, "third-judge"), environ={})
        first_judge = {"revision": "r1", "extra_body": {"x": 1}}
        (back,) = judge_runs(
            [second.path], judge(server.url, "scripted-judge", judge_args=first_judge), environ={}
        )
    assert len({judged_run, second.path, third.path, back.path}) == 4
    for copy in (third, back):
        chain = manifest(copy.path)["answers_from"]
        assert chain["run_id"] == manifest(second.path)["run_id"]
        assert chain["answers_from"]["run_id"] == manifest(judged_run)["run_id"]
        assert (copy.path / "answers.jsonl").read_bytes() == (judged_run / "answers.jsonl").read_bytes()
    assert numbers(back.path) == numbers(judged_run)


def test_a_copy_lies_where_it_is_asked_for(judged_run: Path, tmp_path: Path) -> None:
    """--work-dir and --run-dir say where; with --run-dir even the same judge judges anew."""
    before = files(judged_run)
    with ScriptedServer() as server:
        (under,) = judge_runs([judged_run], judge(server.url, work_dir=tmp_path / "work"), environ={})
        (named,) = judge_runs([judged_run], judge(server.url, run_dir=tmp_path / "named"), environ={})
        own = TaskConfig(run_dir=tmp_path / "anew", judge_model_args={"api_key": "k", "api_url": server.url})
        (anew,) = judge_runs([judged_run], own, environ={})
        with pytest.raises(ConfigError, match="--work-dir"):
            judge_runs([judged_run, named.path], own, environ={})
        other = judge(server.url, "third-judge", run_dir=tmp_path / "named")
        with pytest.raises(RunDirectoryError, match=r"judge\.name"):
            judge_runs([judged_run], other, environ={})
        with pytest.raises(RunDirectoryError, match="no copy of"):
            judge_runs([under.path], judge(server.url, run_dir=tmp_path / "named"), environ={})
    assert under.path.parent == tmp_path / "work"
    assert named.path == tmp_path / "named"
    assert numbers(anew.path) == numbers(judged_run)
    assert files(judged_run) == before


# --- many runs --------------------------------------------------------------------------------------------


def test_the_limit_is_shared_and_never_exceeded(tmp_path: Path) -> None:
    """However many runs there are, so many requests are in flight at once, also while one run ends."""
    with ScriptedServer() as server:
        runs = answered_runs(server, tmp_path, 4)
        server.script = delayed(scripted_answers(), judge=0.05)
        done = otoscope("judge", *map(str, runs), *flags(server.url), "--judge-batch-size", "5", environ=KEY)
        assert done.returncode == 0, done.stderr
        assert server.max_in_flight == {"other-judge": 5}
        times = sorted(seen.at for seen in server.requests)
        assert set(paid(server).values()) == {1}
    assert len(times) == 4 * 32
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [["model", str(n)] for n in range(4)]
    for run, line in zip(runs, done.stdout.splitlines(), strict=True):
        average = load_run(run).summary.average
        assert average.ci95 is not None
        shown = f"Average {average.gpt_score:.2f} [{average.ci95[0]:.2f}, {average.ci95[1]:.2f}], "
        assert shown in line
        assert "  16/16  " in line
        assert line.endswith(f"  {run}")
    assert times[2] - times[0] >= 0.05, "the first sample goes alone"
    assert "128 verdicts to ask for" in " ".join(done.stderr.split())
    assert "judged 128/128" in done.stderr
    assert "answered" not in done.stderr, "nothing is to be answered"
    for run in runs:
        assert numbers(run)["counts"]["scored"] == 16


def test_no_slot_is_idle_while_a_run_waits_for_its_last_reply(tmp_path: Path) -> None:
    """A run whose last reply is slow holds up no other: those are judged meanwhile, with all other slots."""
    with ScriptedServer() as server:
        runs = answered_runs(server, tmp_path, 3)
        others = 0

        def script(seen: Seen, attempt: int) -> Response:
            nonlocal others
            response = scripted_answers()(seen, attempt)
            if "number 15." in seen.text and others == 0:
                others = 1
                return replace(response, delay=1.5)
            return response

        server.script = script
        events: list[Event] = []
        judge_runs(runs, judge(server.url, judge_batch_size=4), on_event=events.append, environ={})
    slow = next(
        number
        for number, event in reversed(list(enumerate(events)))
        if isinstance(event, Judged) and event.run_path == runs[0]
    )
    before = Counter(event.run_path for event in events[:slow] if isinstance(event, Judged))
    assert before[runs[1]] == before[runs[2]] == 32


def test_json_of_several_runs_is_one_list(tmp_path: Path) -> None:
    """What is printed for machines is one document, one summary for each run in the given order."""
    with ScriptedServer() as server:
        runs = answered_runs(server, tmp_path, 2, each=1)
        done = otoscope("judge", *map(str, runs), *flags(server.url), "--format", "json", environ=KEY)
    assert [one["label"] for one in json.loads(done.stdout)] == ["model 0", "model 1"]


def test_one_locked_run_does_not_stop_the_others(tmp_path: Path) -> None:
    """What is wrong with one run's folder is named at the end, with its exit code; the others are judged."""
    with ScriptedServer() as server:
        runs = answered_runs(server, tmp_path, 5, each=1)
        newer = manifest(runs[3]) | {"format": 99}
        (runs[3] / "manifest.json").write_text(json.dumps(newer), encoding="utf-8")
        (runs[4] / "samples.jsonl").unlink()
        with RunLock(runs[0]):
            done = otoscope("judge", *map(str, runs), *flags(server.url), environ=KEY)
        assert done.returncode == 6
        assert len(server.requests) == 2 * 16
        last = done.stderr.splitlines()[-8:]
        for run, words in ((runs[0], "in use by pid"), (runs[3], "format 99"), (runs[4], "samples.jsonl")):
            assert any(str(run) in line and words in line for line in last), done.stderr
        assert "judged 32/32" in done.stderr
        assert len(done.stdout.splitlines()) == 2
        assert numbers(runs[1])["counts"]["scored"] == numbers(runs[2])["counts"]["scored"] == 8
        taken = otoscope("judge", str(runs[0]), str(runs[1]), *flags(server.url), environ=KEY)
        assert taken.returncode == 0, taken.stderr
        assert len(server.requests) == 3 * 16


def test_a_locked_run_is_taken_over_when_that_is_asked_for(tmp_path: Path) -> None:
    """--take-over counts for every run of the command."""
    with ScriptedServer() as server:
        runs = answered_runs(server, tmp_path, 2, each=1)
        with RunLock(runs[1]):
            done = otoscope("judge", *map(str, runs), *flags(server.url), "--take-over", environ=KEY)
    assert done.returncode == 0, done.stderr
    assert numbers(runs[1])["counts"]["scored"] == 8


def test_blank_answers_of_one_run_are_its_own_trouble(tmp_path: Path) -> None:
    """A run whose answers are mostly blank is not judged; the others are, and it is named."""
    with ScriptedServer() as server:
        runs = answered_runs(server, tmp_path, 2)
        server.script = lambda _seen, _attempt: Response(text="")
        blank = run_task(config(server.url, tmp_path / "data", tmp_path / "blank", no_judge=True)).path
        server.script = scripted_answers()
        server.reset()
        done = otoscope("judge", str(blank), *map(str, runs), *flags(server.url), environ=KEY)
        assert done.returncode == 4
        said = next(line for line in done.stderr.splitlines() if line.startswith("otoscope: error:"))
        assert said.startswith(f"otoscope: error: {blank}: 16 of the first 16 answers are blank")
        assert "--judge-blank" in said
        assert "retry-failed" not in said, "it is for answers that are asked for"
        assert len(asked_of_judge(server)) == 64


def test_a_judge_that_refuses_stops_all_and_one_command_resumes_all(tmp_path: Path) -> None:
    """The first refusal costs one request; the printed command, with the key, judges every run."""
    with ScriptedServer() as server:
        runs = answered_runs(server, tmp_path, 3, each=1)

        def script(seen: Seen, attempt: int) -> Response:
            if seen.headers["authorization"] != "Bearer right":
                return Response(status=401, error={"message": "bad key"})
            return scripted_answers()(seen, attempt)

        server.script = script
        words = [*map(str, runs), *flags(server.url)]
        done = otoscope("judge", *words, environ=KEY)
        assert done.returncode == 5, done.stderr
        assert len(server.requests) <= 2, "both orders of the first sample"
        resuming = f"otoscope judge {' '.join(words)}"
        assert resuming in done.stderr
        again = otoscope(*resuming.split()[1:], environ={"OTOSCOPE_JUDGE_API_KEY": "right"})
        assert again.returncode == 0, again.stderr
    assert [numbers(run)["counts"]["scored"] for run in runs] == [8, 8, 8]


def test_a_judge_that_goes_away_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    """When the quota ends while several runs are judged, all stop with what they have, and go on later."""
    with ScriptedServer() as server:
        runs = answered_runs(server, tmp_path, 3)
        count = 0

        def script(seen: Seen, attempt: int) -> Response:
            nonlocal count
            count += 1
            if count > 50:
                return Response(status=429, error={"message": "no money", "code": "insufficient_quota"})
            return scripted_answers()(seen, attempt)

        server.script = script
        settings = judge(server.url, judge_batch_size=8)
        with pytest.raises(EndpointError, match="quota"):
            judge_runs(runs, settings, environ={})
        stored = sum(len(lines(run / "verdicts.jsonl")) for run in runs if (run / "verdicts.jsonl").exists())
        assert stored == 50
        server.script = scripted_answers()
        ended = judge_runs(runs, settings, environ={})
        assert set(paid(server).values()) == {1}
    assert [run.summary.counts["scored"] for run in ended] == [16, 16, 16]


@posix_only
@pytest.mark.parametrize("moment", [3, 40, 90])
def test_killed_in_the_middle_of_three_runs(tmp_path: Path, moment: int) -> None:
    """SIGKILL loses nothing that was paid for: the same command ends with the numbers of one never killed."""
    with ScriptedServer() as server:
        runs = answered_runs(server, tmp_path, 3)
        # One of the three has verdicts of another judge, so that a copy is made of it.
        judge_runs(runs[:1], judge(server.url, "first-judge"), environ={})
        whole = tmp_path / "whole"
        whole.mkdir()
        for run in runs:
            shutil.copytree(run, whole / run.name)
        server.script = delayed(scripted_answers(), judge=0.02)
        more = [*flags(server.url), "--judge-batch-size", "4"]
        assert otoscope("judge", *(str(whole / run.name) for run in runs), *more, environ=KEY).returncode == 0
        server.reset()
        words = command("judge", *map(str, runs), *more)
        process = subprocess.Popen(
            words, env=environment(**KEY), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until(lambda: len(server.requests) >= moment or process.poll() is not None)
        process.kill()
        process.wait()
        done = otoscope("judge", *map(str, runs), *more, environ=KEY)
        assert done.returncode == 0, done.stderr
        repeated = len(server.requests) - 96
    assert 0 <= repeated <= 4
    places = [copy_of(runs[0]), *runs[1:]]
    for place in places:
        assert numbers(place) == numbers(next(whole.glob(place.name)))
        assert {path.name for path in place.iterdir()} == {
            "manifest.json", "answers.jsonl", "verdicts.jsonl", "samples.jsonl", "summary.json",
        }  # fmt: skip


@posix_only
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_calls_in_flight_end_and_begins_none(tmp_path: Path, number: int, code: int) -> None:
    """Ctrl-C and SIGTERM store what is in flight of every run, and the printed command resumes all."""
    with ScriptedServer() as server:
        runs = answered_runs(server, tmp_path, 3)
        server.script = delayed(scripted_answers(), judge=0.1)
        words = ["judge", *map(str, runs), *flags(server.url), "--judge-batch-size", "6"]
        process = subprocess.Popen(
            command(*words),
            env=environment(**KEY),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        until(lambda: len(server.requests) > 30)
        process.send_signal(number)
        _, complaint = process.communicate(timeout=15)
        assert process.returncode == code
        assert "Traceback" not in complaint
        resuming = f"otoscope judge {' '.join(map(str, runs))} {' '.join(flags(server.url))}"
        assert resuming in complaint
        assert len(server.requests) < 96
        done = otoscope(*words, environ=KEY)
        assert done.returncode == 0, done.stderr
        assert len(server.requests) == 96
        assert set(paid(server).values()) == {1}
    assert [numbers(run)["counts"]["scored"] for run in runs] == [16, 16, 16]


def test_the_same_answers_are_not_judged_twice_by_one_judge(judged_run: Path) -> None:
    """A run and its copies, all named at once, are one set of answers to a new judge."""
    with ScriptedServer() as server:
        (copy,) = judge_runs([judged_run], judge(server.url), environ={})
        server.reset()
        done = otoscope(
            "judge", str(copy.path), str(judged_run), *flags(server.url, "third-judge"), environ=KEY
        )
        assert done.returncode == 0, done.stderr
        assert len(server.requests) == 32
        both = otoscope("judge", str(judged_run), str(judged_run), *flags(server.url), environ=KEY)
        assert both.stdout.count(" on AIR-Bench Chat") == 1
        assert len(server.requests) == 32


def test_two_copies_never_share_a_folder(tmp_path: Path) -> None:
    """Runs of one name from two folders, copied into one, are told apart: the second is refused by name."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        for folder in ("a", "b"):
            run_task(config(server.url, data, tmp_path / folder / "run", model=f"scripted-{folder}"))
        settings = judge(server.url, work_dir=tmp_path / "out")
        found = look(settings, [tmp_path / "a" / "run", tmp_path / "b" / "run"], {})
    assert [type(one) for one in found] == [Owed, Unusable]


def test_looking_writes_nothing(judged_run: Path) -> None:
    """What would be judged is known before anything is sent, locked or made."""
    before = files(judged_run)
    settings = judge("http://127.0.0.1:9/v1")
    (found,) = look(settings, [judged_run], {})
    assert isinstance(found, Owed)
    assert found.started.verdicts_owed == 32
    (same,) = look(TaskConfig(judge_model_args={"api_key": "k"}), [judged_run], {})
    assert isinstance(same, Skipped)
    assert files(judged_run) == before
    assert not found.path.exists()


def test_a_summary_that_was_not_written_is_written(judged_run: Path) -> None:
    """A run that was killed after its last verdict has old numbers on disk: they are brought up to date."""
    summary = judged_run / "summary.json"
    right = summary.read_bytes()
    summary.write_bytes(b"{}")
    (run,) = judge_runs([judged_run], TaskConfig(judge_model_args={"api_key": "k"}), environ={})
    assert summary.read_bytes() == right
    assert run == load_run(judged_run)


def test_what_is_wrong_with_the_settings_names_the_run(judged_run: Path) -> None:
    """Without a key nothing is looked at any further, and the message says for which run."""
    with pytest.raises(ConfigError, match=f"^{judged_run}: no key for the judge") as refused:
        look(TaskConfig(), [judged_run], {})
    assert "--judge-model embedded" in str(refused.value)
    assert "--no-judge" not in str(refused.value)


@pytest.mark.parametrize("command_name", ["eval", "judge"])
def test_advice_on_a_judge_that_is_not_served_is_the_command_s(tmp_path: Path, command_name: str) -> None:
    """To answer now and judge later is said to whoever is answering, as a command, and to nobody else."""

    def script(seen: Seen, attempt: int) -> Response:
        if seen.kind == "judge":
            return Response(status=404, error={"message": "no such model"})
        return scripted_answers()(seen, attempt)

    with ScriptedServer(script) as server:
        data = write_data(tmp_path / "data", each=1)
        run = tmp_path / "run"
        if command_name == "judge":
            run_task(config(server.url, data, run, no_judge=True))
            words = ["judge", str(run), *flags(server.url, "zzz")]
        else:
            words = eval_flags(server.url, data, "--run-dir", str(run))
        done = otoscope(*words, environ=KEY)
        assert done.returncode == 5
        assert "--judge-model embedded" in done.stderr
        if command_name == "judge":
            assert "(404: no such model). It serves: scripted-" in done.stderr
        later = [line for line in done.stderr.splitlines() if "--no-judge" in line]
        assert len(later) == (command_name == "eval"), done.stderr
        if later:
            resumed = otoscope(*later[0].replace("--api-key ...", "--api-key model-key").split()[1:])
            assert resumed.returncode == 0, resumed.stderr
            assert len(lines(run / "answers.jsonl")) == 8


def test_an_import_that_lacks_answers_is_not_judged(judged_run: Path) -> None:
    """A run whose manifest says why its answers cannot be judged is refused with that reason."""
    stored = manifest(judged_run) | {"cannot_be_judged": "it holds verdicts alone"}
    (judged_run / "manifest.json").write_text(json.dumps(stored), encoding="utf-8")
    (found,) = look(judge("http://127.0.0.1:9/v1"), [judged_run], {})
    assert isinstance(found, Unusable)
    assert "verdicts alone" in str(found.error)


# --- files ------------------------------------------------------------------------------------------------


def test_a_file_of_answers_becomes_a_run_that_is_judged(tmp_path: Path) -> None:
    """Answers made elsewhere are judged like a run's; the same command again finds its run, asks nothing."""
    data = write_data(tmp_path / "data", each=1)
    records = json.loads((data / "Chat" / "Chat_meta.json").read_text(encoding="utf-8"))
    rows = [
        {"key": f"{r['task_name']}/{r['dataset_name']}/{r['path']}#{r['uniq_id']}", "answer": f"A tone {i}."}
        for i, r in enumerate(records)
    ]
    file = tmp_path / "answers.jsonl"
    rows[-1:-1] = [{"key": "speech_QA/tones/nowhere.wav#99", "answer": "Of no sample."}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]), encoding="utf-8")
    with ScriptedServer() as server:
        words = ["judge", str(file), "--data", str(data), "--min-coverage", "0.5", *flags(server.url)]
        done = otoscope(*words, cwd=tmp_path, environ=KEY)
        assert done.returncode == 0, done.stderr
        assert len(server.requests) == len(asked_of_judge(server)) == 14
        again = otoscope(*words, cwd=tmp_path, environ=KEY)
        assert again.returncode == 0, again.stderr
        assert len(server.requests) == 14
        (run,) = (tmp_path / "outputs").iterdir()
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        named = [*words, "--run-dir", str(tmp_path / "named")]
        assert otoscope(*named, cwd=tmp_path, environ=KEY).returncode == 0
        assert numbers(tmp_path / "named")["counts"]["scored"] == 8
        other = tmp_path / "other.jsonl"
        other.write_text(json.dumps(rows[0]) + "\n", encoding="utf-8")
        strange = otoscope("judge", str(other), *named[2:], cwd=tmp_path, environ=KEY)
        assert strange.returncode == 6
        assert f"not of {other}" in strange.stderr
    assert numbers(run)["counts"]["scored"] == 7
    assert "answers.jsonl:8" in done.stderr


class JudgedFiles:
    """The command on files of answers in a folder, with a count of what it asks for."""

    def __init__(self, folder: Path, server: ScriptedServer) -> None:
        self.folder = folder
        self.url = server.url
        self._server = server

    def write(self, name: str, *rows: dict[str, Any]) -> None:
        """Write one of the files."""
        write_lines(self.folder / name, rows)

    def judge(self, *words: str, judge: str = "other-judge") -> tuple[int, subprocess.CompletedProcess[str]]:
        """Judge files; return how many verdicts were asked for, and what was printed."""
        before = len(self._server.requests)
        done = otoscope(
            "judge", *words, *flags(self.url, judge), cwd=self.folder,
            environ={**KEY, "COLUMNS": "1000"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return len(self._server.requests) - before, done

    def runs(self) -> list[Path]:
        """Return the runs that were made of files."""
        return sorted(path for path in (self.folder / "outputs").iterdir() if "judged-by" not in path.name)


@pytest.fixture
def judged_files(tmp_path: Path) -> Iterator[JudgedFiles]:
    """Give a folder in which the command judges files of answers."""
    with ScriptedServer() as server:
        yield JudgedFiles(tmp_path, server)


ROWS = [chat_result(metadata(number), f"A tone {number}.") for number in range(6)]
ANOTHER = chat_result(metadata(0), "Another answer.")


def test_of_a_file_that_changed_only_what_is_new_is_judged(judged_files: JudgedFiles) -> None:
    """A row more costs its own verdicts, a row less none; the numbers are those of the file as it is."""
    judged_files.write("a.jsonl", *ROWS[:4])
    assert judged_files.judge("a.jsonl")[0] == 8
    (run,) = judged_files.runs()
    made = manifest(run)
    judged_files.write("a.jsonl", *ROWS[:5])
    assert judged_files.judge("a.jsonl")[0] == 2
    judged_files.write("a.jsonl", *ROWS[1:5])
    asked, less = judged_files.judge("a.jsonl")
    assert asked == 0
    assert "nothing to ask for" in less.stderr
    assert numbers(run)["counts"]["expected"] == numbers(run)["counts"]["scored"] == 4
    judged_files.write("a.jsonl", ANOTHER, *ROWS[1:5])
    assert judged_files.judge("a.jsonl")[0] == 2
    assert numbers(run)["counts"]["scored"] == 5
    assert judged_files.runs() == [run]
    for name in ("run_id", "created_at", "judge_id"):
        assert manifest(run)[name] == made[name]
    judged_files.write("b.jsonl", ANOTHER, *ROWS[1:5])
    assert judged_files.judge("b.jsonl", "--run-dir", "anew")[0] == 10, "a place that is named is a new start"
    assert numbers(judged_files.folder / "anew") == numbers(run)


def test_a_copy_for_another_judge_follows_the_file(judged_files: JudgedFiles) -> None:
    """Also the verdicts of a second judge are asked for only where the file is new."""
    judged_files.write("a.jsonl", *ROWS[:4])
    judged_files.judge("a.jsonl")
    assert judged_files.judge("a.jsonl", judge="second-judge")[0] == 8
    judged_files.write("a.jsonl", *ROWS[:5])
    assert judged_files.judge("a.jsonl", judge="second-judge")[0] == 2
    (run,) = judged_files.runs()
    assert numbers(copy_of(run, "second-judge"))["counts"]["scored"] == 5


def test_a_file_by_another_name_costs_nothing_again(judged_files: JudgedFiles) -> None:
    """The same bytes under another name are a run of their own with the verdicts that were paid for."""
    judged_files.write("a.jsonl", *ROWS)
    judged_files.judge("a.jsonl")
    (first,) = judged_files.runs()
    (judged_files.folder / "a.jsonl").rename(judged_files.folder / "b.jsonl")
    asked, _ = judged_files.judge("b.jsonl")
    assert asked == 0
    (second,) = set(judged_files.runs()) - {first}
    assert numbers(second) == numbers(first)
    assert manifest(second)["run_id"] != manifest(first)["run_id"]
    assert [manifest(run)["label"] for run in (first, second)] == ["a", "b"]


def test_equal_files_of_one_command_are_judged_once(judged_files: JudgedFiles) -> None:
    """Two files with the same content cost what one costs, and it is said which was left out."""
    for name in ("a.jsonl", "b.jsonl"):
        judged_files.write(name, *ROWS)
    asked, done = judged_files.judge("a.jsonl", "b.jsonl")
    assert asked == 12
    assert "b.jsonl: has the same content as a.jsonl" in done.stderr


def test_a_file_s_run_is_renewed_by_one_process_alone(judged_files: JudgedFiles) -> None:
    """While another process writes to the run of a file that has changed, nothing of it is touched."""
    judged_files.write("a.jsonl", *ROWS[:4])
    judged_files.judge("a.jsonl")
    (run,) = judged_files.runs()
    judged_files.write("a.jsonl", *ROWS)
    with RunLock(run):
        before = files(run)
        done = otoscope("judge", "a.jsonl", "--judge-model", "j", cwd=judged_files.folder, environ=KEY)
        assert done.returncode == 6
        assert "in use by pid" in done.stderr
        assert files(run) == before
    assert judged_files.runs() == [run]


def test_what_is_torn_or_foreign_is_not_taken_over(judged_files: JudgedFiles) -> None:
    """Verdict lines that counted nowhere, half ones and those of another run, count nowhere else either."""
    judged_files.write("a.jsonl", *ROWS[:4])
    judged_files.judge("a.jsonl")
    (run,) = judged_files.runs()
    stored = (run / "verdicts.jsonl").read_bytes().splitlines(keepends=True)
    foreign = json.dumps({**json.loads(stored[0]), "run": "another"}).encode() + b"\n"
    (run / "verdicts.jsonl").write_bytes(foreign + b"".join(stored[1:-1]) + stored[-1][:50])
    judged_files.write("b.jsonl", *ROWS[:4])
    assert judged_files.judge("b.jsonl")[0] == 2


def test_a_file_with_verdicts_that_has_changed_is_not_mixed(judged_files: JudgedFiles) -> None:
    """The verdicts that a file told before it was changed and those that it tells now are never one run's."""
    rows = [batch_output(metadata(n), "A tone.", Order.REFERENCE_FIRST, f"8 {n}") for n in range(1, 3)]
    judged_files.write("batch_run_output.jsonl", rows[0])
    judged_files.judge("batch_run_output.jsonl")
    before = files(judged_files.runs()[0])
    judged_files.write("batch_run_output.jsonl", *rows)
    again = otoscope("judge", "batch_run_output.jsonl", cwd=judged_files.folder, environ=KEY)
    assert again.returncode == 6
    assert "before it was changed" in again.stderr
    assert files(judged_files.runs()[0]) == before


def test_what_is_said_of_a_file_s_answers_is_in_its_run(judged_files: JudgedFiles) -> None:
    """Model, label, tags and filter arrive; what changes in them costs only what it changes in a text."""
    judged_files.write("a.jsonl", chat_result(metadata(0), "<think>Hm.</think>A tone."), *ROWS[1:4])
    told = ["--model", "my-model", "--label", "mine", "--tag", "x=1", "--tag", "y=2"]
    assert judged_files.judge("a.jsonl", *told)[0] == 8
    (run,) = judged_files.runs()
    summary = load_run(run).summary
    assert (summary.model, summary.label, summary.tags) == ("my-model", "mine", {"x": "1", "y": "2"})
    assert lines(run / "answers.jsonl")[0]["text"] == "A tone."
    assert judged_files.judge("a.jsonl", *told, "--answer-filter", "none")[0] == 2
    assert lines(run / "answers.jsonl")[0]["text"] == "<think>Hm.</think>A tone."
    judged_files.write("b.jsonl", *ROWS[:3])
    asked, two = judged_files.judge("a.jsonl", "b.jsonl")
    assert asked == 6
    assert [line.split()[0] for line in two.stdout.splitlines()] == ["a", "b"]


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--data", "x"), ("--model", "x"), ("--label", "x"), ("--tag", "x=1"), ("--answer-filter", "none")],
)
def test_what_is_said_of_a_file_is_for_files_alone(judged_run: Path, flag: str, value: str) -> None:
    """With a run these flags would do nothing, so they are refused."""
    done = otoscope("judge", str(judged_run), flag, value, environ=KEY)
    assert done.returncode == 2
    assert f"{flag} is for answers in a file" in done.stderr


def test_one_model_is_not_said_of_several_files(judged_files: JudgedFiles) -> None:
    """--model with two files would name both alike."""
    for number in range(2):
        judged_files.write(f"{number}.jsonl", *ROWS[number:])
    done = otoscope("judge", "0.jsonl", "1.jsonl", "--model", "m", cwd=judged_files.folder, environ=KEY)
    assert done.returncode == 2
    assert "--model" in done.stderr


def test_a_dry_run_tells_all_and_sends_and_writes_nothing(
    judged_run: Path, judged_files: JudgedFiles
) -> None:
    """Runs in place, copies, new files and changed ones, with the verdicts in all; no key is needed."""
    folder = judged_files.folder
    judged_files.write("old.jsonl", *ROWS[:4])
    judged_files.judge("old.jsonl")
    judged_files.judge("old.jsonl", judge="second-judge")
    judged_files.write("old.jsonl", *ROWS[:5])
    judged_files.write("new.jsonl", *ROWS)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    words = ["judge", str(judged_run), "old.jsonl", "new.jsonl", *flags(judged_files.url, "second-judge")]
    dry = otoscope(*words, "--dry-run", cwd=folder, environ={"COLUMNS": "1000"})
    assert dry.returncode == 0, dry.stderr
    told = dry.stdout
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert f"{judged_run}: 32 verdicts, over a copy of the answers in {judged_run}--judged-by-second-" in told
    assert re.search(
        r"outputs/old-\w+: 2 verdicts, over a copy of the answers in outputs/old-\w+--judged-by", told
    )
    assert re.search(r"outputs/new-\w+: 12 verdicts, in place", told)
    assert "46 verdicts to ask for" in told
    assert "Nothing was sent and nothing written." in told
    assert "/otoscope-" not in told, "where it was tried out is not where it will lie"


def test_a_dry_run_says_what_cannot_be_judged(judged_run: Path) -> None:
    """Its exit code is that of the real one."""
    stored = manifest(judged_run) | {"cannot_be_judged": "it holds verdicts alone"}
    (judged_run / "manifest.json").write_text(json.dumps(stored), encoding="utf-8")
    dry = otoscope("judge", str(judged_run), "--dry-run")
    assert dry.returncode == 6
    assert "verdicts alone" in " ".join(dry.stdout.split())
