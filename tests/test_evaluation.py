"""The whole of an evaluation, in this process, against the scripted server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from otoscope import TaskConfig, judge_runs, load_run, run_task
from otoscope.benchmark import TASKS
from otoscope.errors import EndpointError, RunDirectoryError
from otoscope.records import Answered, Event, Failure, FailureKind, Notice, Order, RunStarted, Verdict
from otoscope.runs import Run
from tests.scripted_server import (
    Response,
    Script,
    ScriptedServer,
    Seen,
    by_model,
    delayed,
    failing,
    known_models,
    require_key,
    scripted_answers,
)
from tests.support import DEMO, config, lines, write_data, write_wav

BOTH = 2


def numbers(run: Run) -> dict[str, Any]:
    """Return what must be equal between two runs: every number, and nothing of time and place."""
    stored = run.summary.to_json()
    return {name: stored[name] for name in (
        "partial", "counts", "average", "mixed_audio", "categories", "tasks", "datasets", "all_samples",
        "position", "answers", "verdicts",
    )}  # fmt: skip


def judged(server: ScriptedServer) -> list[Seen]:
    """Return the requests that the judge got."""
    return [seen for seen in server.requests if seen.kind == "judge"]


def asked(server: ScriptedServer) -> list[Seen]:
    """Return the requests that the model got."""
    return [seen for seen in server.requests if seen.kind == "model"]


def test_the_demonstration_clips_are_evaluated_whole(tmp_path: Path) -> None:
    """Every sample is answered once and judged in both orders, and the paper's cells come out."""
    with ScriptedServer() as server:
        run = run_task(config(server.url, DEMO, tmp_path / "run"))
        assert len(asked(server)) == 16
        assert len(judged(server)) == 32
        assert {seen.headers["authorization"] for seen in asked(server)} == {"Bearer model-key"}
        assert {seen.headers["authorization"] for seen in judged(server)} == {"Bearer judge-key"}
    assert run.summary.counts["scored"] == 16
    assert run.summary.average.gpt_score is not None
    assert {path.name for path in run.path.iterdir()} == {
        "manifest.json", "answers.jsonl", "verdicts.jsonl", "samples.jsonl", "summary.json",
    }  # fmt: skip
    assert json.loads((run.path / "summary.json").read_text(encoding="utf-8")) == json.loads(
        json.dumps(run.summary.to_json(), allow_nan=False)
    )
    assert load_run(run.path) == run


def test_the_numbers_are_those_of_the_judges_replies(tmp_path: Path) -> None:
    """The scores, recomputed from the raw replies with exact fractions, are those of the summary."""
    with ScriptedServer() as server:
        run = run_task(config(server.url, DEMO, tmp_path / "run"))
    scores: dict[str, list[Fraction]] = {}
    for line in lines(run.path / "verdicts.jsonl"):
        first, second = (Fraction(word) for word in line["replies"][-1]["text"].split())
        scores.setdefault(line["key"], []).append(second if line["order"] == "reference_first" else first)
    by_category: dict[str, list[Fraction]] = {}
    for key, both in scores.items():
        assert len(both) == BOTH
        by_category.setdefault(TASKS[key.split("/")[0]].category, []).append(sum(both, Fraction()) / 2)
    means = {name: sum(values, Fraction()) / len(values) for name, values in by_category.items()}
    mixed = (means["speech_and_sound"] + means["speech_and_music"]) / 2
    average = (means["speech"] + means["sound"] + means["music"] + mixed) / 4
    assert run.summary.average.gpt_score == pytest.approx(float(average), abs=1e-12)
    assert run.summary.mixed_audio.gpt_score == pytest.approx(float(mixed), abs=1e-12)
    for name, mean in means.items():
        assert run.summary.categories[name].gpt_score == pytest.approx(float(mean), abs=1e-12)


def test_the_clips_arrive_as_they_are(tmp_path: Path) -> None:
    """The bytes that the server decodes are the files', and each is sent with the format it has."""
    with ScriptedServer() as server:
        run = run_task(config(server.url, DEMO, tmp_path / "run", no_judge=True))
        sent = Counter(seen.audio_sha256 for seen in asked(server))
    stored = lines(run.path / "answers.jsonl")
    assert sent == Counter(line["clip"]["sha256"] for line in stored)
    assert {line["clip"]["format"] for line in stored} == {"wav", "mp3"}


def test_the_first_sample_goes_alone(tmp_path: Path) -> None:
    """Nothing else is sent before the first sample has its answer and both verdicts."""
    data = write_data(tmp_path / "data", each=2)
    in_flight: Counter[str] = Counter()
    seen_with: list[tuple[int, Counter[str]]] = []
    guard = threading.Lock()

    def script(seen: Seen, attempt: int) -> Response:
        with guard:
            in_flight[seen.kind] += 1
            seen_with.append((len(seen_with), Counter(in_flight)))
        return replace(scripted_answers()(seen, attempt), delay=0.05)

    with ScriptedServer(script) as server:
        run_task(config(server.url, data, tmp_path / "run"))
        kinds = [seen.kind for seen in server.requests[:4]]
        times = [seen.at for seen in server.requests[:4]]
    assert kinds == ["model", "judge", "judge", "model"]
    assert times[1] - times[0] >= 0.05
    assert times[2] - times[1] < 0.05
    assert times[3] - times[2] >= 0.04


def test_answering_and_judging_overlap_within_their_limits(tmp_path: Path) -> None:
    """Verdicts are asked for while answers still are, and each endpoint keeps to its own concurrency."""
    data = write_data(tmp_path / "data", each=4)
    with ScriptedServer(delayed(scripted_answers(), model=0.03, judge=0.02)) as server:
        run_task(config(server.url, data, tmp_path / "run", eval_batch_size=3, judge_batch_size=5))
        last_answer = max(seen.at for seen in asked(server))
        assert sum(seen.at < last_answer for seen in judged(server)) > 10
        assert server.max_in_flight == {"scripted-model": 3, "scripted-judge": 5}


def test_a_slow_judge_does_not_hold_up_the_model(tmp_path: Path) -> None:
    """All answers are there long before the verdicts are: what waits for the judge waits on disk."""
    data = write_data(tmp_path / "data", each=4)
    with ScriptedServer(delayed(scripted_answers(), judge=0.05)) as server:
        run_task(config(server.url, data, tmp_path / "run", judge_batch_size=2))
        last_answer = max(seen.at for seen in asked(server))
        assert sum(seen.at > last_answer for seen in judged(server)) > 32


def test_the_two_orders_stand_next_to_each_other(tmp_path: Path) -> None:
    """A server's prefix cache can serve the second order: it follows right after the first."""
    data = write_data(tmp_path / "data", each=2)
    with ScriptedServer(keep_bodies=True) as server:
        run_task(config(server.url, data, tmp_path / "run", judge_batch_size=1, eval_batch_size=1))
        questions = [seen.text.split("[Question]\n")[1].split("\n")[0] for seen in judged(server)]
    assert questions[0::2] == questions[1::2]
    assert len(set(questions)) == 16


def test_no_swap_judges_one_order(tmp_path: Path) -> None:
    """With do_swap false each answer is judged once, the reference first, and the summary says so."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        run = run_task(config(server.url, data, tmp_path / "run", extra_params={"do_swap": False}))
        assert len(judged(server)) == 8
    assert {line["order"] for line in lines(run.path / "verdicts.jsonl")} == {"reference_first"}
    assert run.summary.counts["scored"] == 8
    assert "no_swap" in {warning["name"] for warning in run.summary.warnings}


def test_a_finished_run_is_not_asked_anything_again(tmp_path: Path) -> None:
    """The same call on a finished run sends nothing and gives the same numbers."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        first = run_task(config(server.url, data, tmp_path / "run"))
        count = len(server.requests)
        again = run_task(config(server.url, data, tmp_path / "run"))
        assert len(server.requests) == count
    assert numbers(again) == numbers(first)


# --- trouble with single samples --------------------------------------------------------------------------


def test_bad_clips_are_failures_by_name_and_stop_nothing(tmp_path: Path) -> None:
    """Missing, empty, broken and smuggled clips are named failures, never sent; the rest is scored."""
    data = write_data(tmp_path / "data", each=2)
    folder = data / "Chat" / "speech_QA_tones"
    (folder / "clip_0.wav").unlink()
    (folder / "clip_1.wav").write_bytes(b"")
    other = data / "Chat" / "sound_QA_tones"
    (other / "clip_0.wav").write_bytes(b"<html>not found</html>" * 9)
    secret = tmp_path / "secret.wav"
    write_wav(secret)
    (other / "clip_1.wav").unlink()
    (other / "clip_1.wav").symlink_to(secret)
    with ScriptedServer() as server:
        run = run_task(config(server.url, data, tmp_path / "run"))
        assert len(asked(server)) == 12
    assert run.summary.counts["scored"] == 12
    assert run.summary.counts["failures"] == {"missing_audio": 1, "bad_audio": 2, "outside_root": 1}
    assert run.summary.all_samples.failed == 4


def test_a_mended_clip_is_owed_again_and_an_unchanged_one_is_not(tmp_path: Path) -> None:
    """On resume a clip that is there now is asked about; one that is as broken as before is left alone."""
    data = write_data(tmp_path / "data", each=1)
    missing = data / "Chat" / "speech_QA_tones" / "clip_0.wav"
    empty = data / "Chat" / "sound_QA_tones" / "clip_0.wav"
    missing.unlink()
    empty.write_bytes(b"")
    with ScriptedServer() as server:
        run_task(config(server.url, data, tmp_path / "run"))
        server.reset()
        write_wav(missing)
        run = run_task(config(server.url, data, tmp_path / "run"))
        assert len(asked(server)) == 1
    assert run.summary.counts["failures"] == {"bad_audio": 1}
    assert len([line for line in lines(run.path / "answers.jsonl") if "failure" in line]) == 2


def test_a_storm_of_judge_trouble_leaves_every_sample_scored_or_failed_by_name(tmp_path: Path) -> None:
    """With a tenth of the verdicts unparseable and a twentieth of all calls refused, nothing gets lost."""
    data = write_data(tmp_path / "data", each=12)
    both: Any = ("model", "judge")
    script = failing(scripted_answers(), 0.1, Response(text="Both answers are good."), seed=1)
    script = failing(script, 0.025, Response(status=429, error={"message": "slow down"}), kinds=both, seed=2)
    script = failing(script, 0.025, Response(status=500, error={"message": "boom"}), kinds=both, seed=3)
    with ScriptedServer(script) as server:
        run = run_task(config(server.url, data, tmp_path / "run"))
        statuses = Counter(seen.status for seen in server.requests)
    assert statuses[429] > 0
    assert statuses[500] > 0
    counts = run.summary.counts
    assert counts["expected"] == 96
    assert counts["pending"] == 0
    assert counts["scored"] + sum(counts["failures"].values()) == 96
    assert counts["scored"] >= 90
    assert run.summary.verdicts["asked_again"] > 5


def test_a_judge_with_too_small_a_context_fails_the_sample_by_that_name(tmp_path: Path) -> None:
    """A description that does not fit is cut nowhere: its sample fails, the others are scored."""
    data = write_data(tmp_path / "data", each=2)
    refusal = {
        "message": "This model's maximum context length is 8 tokens",
        "code": "context_length_exceeded",
    }

    def script(seen: Seen, attempt: int) -> Response:
        if seen.kind == "judge" and "'tone': 5" in seen.text:
            return Response(status=400, error=refusal)
        return scripted_answers()(seen, attempt)

    with ScriptedServer(script) as server:
        run = run_task(config(server.url, data, tmp_path / "run"))
    assert run.summary.counts["failures"] == {"context_too_small": 1}
    assert run.summary.counts["failed_at"] == {"verdict": 1}
    assert run.summary.counts["scored"] == 15


# --- trouble that stops a run -----------------------------------------------------------------------------


def stopped(script: Script, data: Path, run_dir: Path) -> tuple[EndpointError, list[Seen]]:
    """Run into the endpoint error that this script provokes; return it and what was sent."""
    with ScriptedServer(script, models=("served-1", "served-2")) as server:
        with pytest.raises(EndpointError) as caught:
            run_task(config(server.url, data, run_dir))
        return caught.value, [seen for seen in server.requests if seen.kind in ("model", "judge")]


def test_a_wrong_key_is_one_clear_error(tmp_path: Path) -> None:
    """A key that the model's server refuses costs one request, and the error says which flag gives it."""
    data = write_data(tmp_path / "data", each=4)
    error, sent = stopped(require_key(scripted_answers(), "another"), data, tmp_path / "run")
    assert error.exit_code == 4
    assert len(sent) == 1
    assert "--api-key" in str(error)


def test_an_unknown_model_is_one_clear_error_that_lists_the_known(tmp_path: Path) -> None:
    """A model name the server does not know is answered with the names it serves."""
    data = write_data(tmp_path / "data", each=4)
    error, sent = stopped(known_models(scripted_answers(), ["served-1", "served-2"]), data, tmp_path / "run")
    assert error.exit_code == 4
    assert len(sent) == 1
    assert "'scripted-model'" in str(error)
    assert "served-1, served-2" in str(error)


def test_a_wrong_wire_form_is_one_clear_error_and_nobodys_failure(tmp_path: Path) -> None:
    """Refused in every form, three single samples stop the run; once that is mended all samples are owed."""
    data = write_data(tmp_path / "data", each=4)
    refusal = Response(status=400, error={"message": "input_audio is not a thing here"})
    with ScriptedServer(by_model({"scripted-model": refusal})) as server:
        with pytest.raises(EndpointError, match="input_audio is not a thing here"):
            run_task(config(server.url, data, tmp_path / "run"))
        assert len(server.requests) == 3 * 3
        server.script = scripted_answers()
        run = run_task(config(server.url, data, tmp_path / "run"))
    assert run.summary.counts["scored"] == 32


def test_a_wrong_judge_key_keeps_the_answer(tmp_path: Path) -> None:
    """The judge's refusal is exit 5; the one answer that was paid for is not paid for again."""
    data = write_data(tmp_path / "data", each=4)

    def script(seen: Seen, attempt: int) -> Response:
        if seen.kind == "judge" and seen.headers["authorization"] != "Bearer right":
            return Response(status=401, error={"message": "bad key"})
        return scripted_answers()(seen, attempt)

    with ScriptedServer(script) as server:
        with pytest.raises(EndpointError) as caught:
            run_task(config(server.url, data, tmp_path / "run"))
        assert caught.value.exit_code == 5
        assert len(asked(server)) == 1
        run = run_task(config(server.url, data, tmp_path / "run", judge_args={"api_key": "right"}))
        assert len(asked(server)) == 32
    assert run.summary.counts["scored"] == 32


def test_a_refused_connection_is_one_clear_error(tmp_path: Path) -> None:
    """Where nothing listens the run stops within its first few tries and says so."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        url = server.url
    with pytest.raises(EndpointError, match="Is the server running") as caught:
        run_task(config(url, data, tmp_path / "run"))
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(("kind", "code"), [("model", 4), ("judge", 5)])
def test_a_used_up_quota_stops_resumably(tmp_path: Path, kind: str, code: int) -> None:
    """insufficient_quota is not retried for ever: the run stops, and goes on when there is quota again."""
    data = write_data(tmp_path / "data", each=3)
    used = Counter[str]()

    def script(seen: Seen, attempt: int) -> Response:
        used[seen.kind] += 1
        if seen.kind == kind and used[kind] > 8:
            return Response(status=429, error={"message": "no money", "code": "insufficient_quota"})
        return scripted_answers()(seen, attempt)

    with ScriptedServer(script) as server:
        with pytest.raises(EndpointError, match="quota") as caught:
            run_task(config(server.url, data, tmp_path / "run"))
        assert caught.value.exit_code == code
        server.script = scripted_answers()
        before = len(asked(server)) if kind == "judge" else 8
        run = run_task(config(server.url, data, tmp_path / "run"))
        assert run.summary.counts["scored"] == 24
        paid = Counter(seen.digest for seen in server.requests if seen.status == 200)
    assert max(paid.values()) == 1
    assert before >= 8


def test_a_judge_that_goes_away_stops_the_run_with_nothing_lost(tmp_path: Path) -> None:
    """When the judge's server dies the run stops with exit 5; resumed, it repeats no paid call."""
    data = write_data(tmp_path / "data", each=6)
    with ScriptedServer() as model, ScriptedServer() as judge:
        port = judge.port

        def on_event(event: Event) -> None:
            if isinstance(event, Answered) and len(judged(judge)) > 10 and judge.open_connections:
                judge.stop()

        settings = config(model.url, data, tmp_path / "run", judge_args={"api_url": judge.url})
        with pytest.raises(EndpointError) as caught:
            run_task(settings, on_event=on_event)
        assert caught.value.exit_code == 5
        answered = {line["key"] for line in lines(tmp_path / "run" / "answers.jsonl")}
        paid_answers = len(asked(model))
        judge.start(port=port)
        run = run_task(settings)
        assert len(asked(model)) == 48
        assert len(answered) == paid_answers
    assert run.summary.counts["scored"] == 48


def test_many_blank_answers_stop_the_run_before_they_are_judged(tmp_path: Path) -> None:
    """More than five blanks among the first hundred answers: exit 4, and no blank is judged."""
    data = write_data(tmp_path / "data", each=2)
    with ScriptedServer(by_model({"scripted-model": Response(text="")})) as server:
        with pytest.raises(EndpointError, match="blank") as caught:
            run_task(config(server.url, data, tmp_path / "run"))
        assert caught.value.exit_code == 4
        assert judged(server) == []
        with pytest.raises(EndpointError, match="--judge-blank"):
            run_task(config(server.url, data, tmp_path / "run"))
        server.script = scripted_answers()
        run = run_task(config(server.url, data, tmp_path / "run", retry_failed=["empty_answer"]))
    assert run.summary.counts["scored"] == 16
    assert run.summary.answers["empty_answer"] == 0


def test_blank_answers_are_judged_when_that_is_asked_for(tmp_path: Path) -> None:
    """With judge_blank the blank answers are judged as they are, and counted."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer(by_model({"scripted-model": Response(text="")})) as server:
        run = run_task(config(server.url, data, tmp_path / "run", judge_blank=True))
    assert run.summary.counts["scored"] == 8
    assert run.summary.answers["empty_answer"] == 8
    assert "empty_answer" in {warning["name"] for warning in run.summary.warnings}


def test_a_few_blank_answers_are_judged_with_the_rest(tmp_path: Path) -> None:
    """Blank answers that turn out to be exceptions are judged once that is known."""
    data = write_data(tmp_path / "data", each=2)

    def script(seen: Seen, attempt: int) -> Response:
        if seen.kind == "model" and "clip 3 of" in seen.text:
            return Response(text=" ")
        return scripted_answers()(seen, attempt)

    with ScriptedServer(script) as server:
        run = run_task(config(server.url, data, tmp_path / "run"))
    assert run.summary.counts["scored"] == 16
    assert run.summary.answers["empty_answer"] == 1


# --- continuing -------------------------------------------------------------------------------------------


def test_answers_first_and_verdicts_later(tmp_path: Path) -> None:
    """A run made without a judge is judged in place, without the data set, and ends as if done at once."""
    data = write_data(tmp_path / "data", each=2)
    with ScriptedServer() as server:
        whole = run_task(config(server.url, data, tmp_path / "whole"))
        run = run_task(config(server.url, data, tmp_path / "run", no_judge=True))
        assert run.summary.counts["pending"] == 16
        server.reset()
        data.rename(tmp_path / "moved")
        judge = config(server.url, data).judge_model_args
        (completed,) = judge_runs([run.path], TaskConfig(judge_model_args=judge), environ={})
        assert asked(server) == []
        assert len(judged(server)) == 32
    assert completed.path == run.path
    assert numbers(completed) == numbers(whole)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"generation_config": {"temperature": 1}}, "model.parameters"),
        ({"model": "another"}, "model.name"),
        ({"answer_filter": "none"}, "prompt.answer_filter"),
        ({"system_prompt": "Be brief."}, "prompt.system"),
        ({"part_order": "text-first"}, "prompt.part_order"),
        ({"audio_part": "audio_url"}, "prompt.audio_part"),
        ({"model_revision": "v2"}, "model.revision"),
        ({"extra_body": {"top_k": 5}}, "model.extra_body"),
        ({"judge_args": {"model_id": "another"}}, "judge.name"),
        ({"judge_args": {"revision": "v2"}}, "judge.revision"),
        ({"protocol": "official"}, "judge.protocol"),
        ({"extra_params": {"do_swap": False}}, "judge.do_swap"),
    ],
)
def test_a_changed_setting_is_refused_by_name(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    """Whatever shapes answers or verdicts cannot change within a run, and the refusal names it."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        run_task(config(server.url, data, tmp_path / "run"))
        count = len(server.requests)
        with pytest.raises(RunDirectoryError, match=field.replace(".", r"\.")) as caught:
            run_task(config(server.url, data, tmp_path / "run", **change))
        assert caught.value.exit_code == 6
        assert len(server.requests) == count


def test_another_url_is_refused_until_it_is_allowed(tmp_path: Path) -> None:
    """A restarted server has another address: the message prints the flag, and the change is recorded."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as one, ScriptedServer() as two:
        run_task(config(one.url, data, tmp_path / "run", limit=1))
        moved = config(two.url, data, tmp_path / "run", judge_args={"api_url": one.url})
        with pytest.raises(RunDirectoryError, match=r"--allow-changed model\.api_url"):
            run_task(moved)
        run_task(replace(moved, allow_changed=["model.api_url"]))
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["allowed_changes"] == [{"field": "model.api_url", "from": one.url, "to": two.url}]


def test_with_a_revision_the_url_is_free(tmp_path: Path) -> None:
    """Where both runs name the same revision, that is the model's identity."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as one, ScriptedServer() as two:
        judge = {"api_url": one.url}
        run_task(config(one.url, data, tmp_path / "run", model_revision="v1", judge_args=judge))
        run = run_task(config(two.url, data, tmp_path / "run", model_revision="v1", judge_args=judge))
        assert two.requests == []
    assert run.summary.counts["scored"] == 8


def test_a_larger_selection_computes_only_what_is_new(tmp_path: Path) -> None:
    """Raising the limit keeps what is done; lowering it takes what is outside out of every number."""
    data = write_data(tmp_path / "data", each=3)
    with ScriptedServer() as server:
        small = run_task(config(server.url, data, tmp_path / "run", limit=1))
        server.reset()
        run_task(config(server.url, data, tmp_path / "run"))
        assert len(asked(server)) == 16
        server.reset()
        again = run_task(config(server.url, data, tmp_path / "run", limit=1))
        assert server.requests == []
    assert numbers(again) == numbers(small)


def test_a_changed_record_or_clip_is_owed_again(tmp_path: Path) -> None:
    """A corrected question and a replaced clip are asked about anew; a merely touched clip is not."""
    data = write_data(tmp_path / "data", each=1)
    metadata = data / "Chat" / "Chat_meta.json"
    with ScriptedServer() as server:
        run_task(config(server.url, data, tmp_path / "run"))
        server.reset()
        records = json.loads(metadata.read_text(encoding="utf-8"))
        records[0]["question"] = "What else?"
        metadata.write_text(json.dumps(records), encoding="utf-8")
        write_wav(data / "Chat" / "sound_QA_tones" / "clip_0.wav", tone=999)
        (data / "Chat" / "music_QA_tones" / "clip_0.wav").touch()
        run = run_task(config(server.url, data, tmp_path / "run"))
        assert len(asked(server)) == 2
        assert len(judged(server)) == 4
        fresh = run_task(config(server.url, data, tmp_path / "fresh"))
    assert numbers(run) == numbers(fresh)
    # What the replaced clip's first answer cost stays counted.
    assert run.summary.usage["model"]["replies"] == fresh.summary.usage["model"]["replies"] + 1


def test_a_replaced_clip_takes_its_old_score_with_it(tmp_path: Path) -> None:
    """When a clip was replaced and the new one cannot be answered, the old answer's score is nobody's."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        run_task(config(server.url, data, tmp_path / "run"))
        write_wav(data / "Chat" / "sound_QA_tones" / "clip_0.wav", tone=999)
        (data / "Chat" / "music_QA_tones" / "clip_0.wav").write_bytes(b"")
        refusal = Response(status=400, error={"message": "no"})
        server.script = by_model({"scripted-model": refusal})
        run = run_task(config(server.url, data, tmp_path / "run"))
        assert run.summary.counts["failures"] == {"bad_audio": 1, "rejected": 1}
        assert run.summary.counts["scored"] == 6
        count = len(server.requests)
        again = run_task(config(server.url, data, tmp_path / "run"))
        assert len(server.requests) == count
        assert numbers(again) == numbers(run)


def test_a_replaced_clip_is_pending_until_it_is_answered(tmp_path: Path) -> None:
    """A run that is stopped before it asked about the new clip does not go on counting the old answer."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        run_task(config(server.url, data, tmp_path / "run"))
        write_wav(data / "Chat" / "sound_QA_tones" / "clip_0.wav", tone=999)
        server.script = require_key(scripted_answers(), "another")
        with pytest.raises(EndpointError):
            run_task(config(server.url, data, tmp_path / "run"))
    assert load_run(tmp_path / "run").summary.counts["pending"] == 1


def test_a_text_that_was_judged_before_is_not_judged_again(tmp_path: Path) -> None:
    """A new answer with the very text of an earlier one has that one's verdicts already."""
    data = write_data(tmp_path / "data", each=1)

    def script(seen: Seen, attempt: int) -> Response:
        return Response(text="The same.") if seen.kind == "model" else scripted_answers()(seen, attempt)

    with ScriptedServer(script) as server:
        first = run_task(config(server.url, data, tmp_path / "run"))
        write_wav(data / "Chat" / "sound_QA_tones" / "clip_0.wav", tone=999)
        server.reset()
        run = run_task(config(server.url, data, tmp_path / "run"))
        assert (len(asked(server)), len(judged(server))) == (1, 0)
    assert run.summary.counts["scored"] == 8
    assert run.summary.average == first.summary.average


def test_samples_that_always_fail_do_not_lock_a_run(tmp_path: Path) -> None:
    """However often it is resumed, everything else is answered and judged, and the run ends."""
    data = write_data(tmp_path / "data", each=2)

    def script(seen: Seen, attempt: int) -> Response:
        if seen.kind == "model" and any(f"clip {n} of" in seen.text for n in (1, 2, 3, 4)):
            return Response(status=500)
        return scripted_answers()(seen, attempt)

    quick = {"retry_interval": 0.01, "retries": 0}
    with ScriptedServer(script) as server:
        first = run_task(config(server.url, data, tmp_path / "run", generation_config=quick, no_judge=True))
        assert first.summary.counts["failures"] == {"server_error": 4}
        run = run_task(config(server.url, data, tmp_path / "run", generation_config=quick))
        assert run.summary.counts["scored"] == 12
        again = run_task(config(server.url, data, tmp_path / "run", generation_config=quick))
    assert again.summary.counts["failures"] == {"server_error": 4}


@pytest.mark.parametrize("status", [403, 404])
def test_a_sample_that_is_always_refused_does_not_lock_a_resume(tmp_path: Path, status: int) -> None:
    """What served this run is no wrong key: a page for one sample alone is that sample's failure."""
    data = write_data(tmp_path / "data", each=3)

    def script(seen: Seen, attempt: int) -> Response:
        if seen.kind == "model" and "clip 1 of" in seen.text:
            return Response(status=status, body=b"<html>no</html>")
        return scripted_answers()(seen, attempt)

    with ScriptedServer(script) as server:
        run_task(config(server.url, data, tmp_path / "run", limit=1))
        run = run_task(config(server.url, data, tmp_path / "run"))
    assert run.summary.counts["failures"] == {"rejected": 1}
    assert run.summary.counts["scored"] == 23


def test_a_failure_about_another_clip_does_not_stand_for_this_one(tmp_path: Path) -> None:
    """A clip that was refused and then put back as it was is asked about again, and scored."""
    data = write_data(tmp_path / "data", each=1)
    clip = data / "Chat" / "sound_QA_tones" / "clip_0.wav"
    original = clip.read_bytes()
    with ScriptedServer() as server:
        first = run_task(config(server.url, data, tmp_path / "run"))
        write_wav(clip, tone=999)
        server.script = by_model({"scripted-model": Response(status=400, error={"message": "no"})})
        refused = run_task(config(server.url, data, tmp_path / "run"))
        assert refused.summary.counts["failures"] == {"rejected": 1}
        server.script = scripted_answers()
        clip.write_bytes(original)
        run = run_task(config(server.url, data, tmp_path / "run"))
    assert numbers(run) == numbers(first)


def test_a_mistyped_judge_does_not_lock_the_answers(tmp_path: Path) -> None:
    """A judge that never gave a verdict may be corrected."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer(known_models(scripted_answers(), ["scripted-model", "scripted-judge"])) as server:
        wrong = config(server.url, data, tmp_path / "run", judge_args={"model_id": "typo"})
        with pytest.raises(EndpointError):
            run_task(wrong)
        run = run_task(config(server.url, data, tmp_path / "run"))
    assert run.summary.counts["scored"] == 8
    assert run.summary.judge == "scripted-judge"


def test_an_order_that_is_judged_is_stored_before_the_other_ends(tmp_path: Path) -> None:
    """Of the first sample, too, each verdict is written as it comes, whatever becomes of the other order."""
    data = write_data(tmp_path / "data", each=1)
    gone = Response(status=429, error={"message": "no money", "code": "insufficient_quota"})

    def script(seen: Seen, attempt: int) -> Response:
        if seen.kind == "judge" and seen.text.index("A steady tone") > seen.text.index("Assistant 2s Answer"):
            return replace(gone, delay=0.1)
        return scripted_answers()(seen, attempt)

    with ScriptedServer(script) as server, pytest.raises(EndpointError, match="quota"):
        run_task(config(server.url, data, tmp_path / "run"))
    assert [line["order"] for line in lines(tmp_path / "run" / "verdicts.jsonl")] == ["reference_first"]


def test_the_error_names_its_run(tmp_path: Path) -> None:
    """Whoever calls from Python learns where what was done lies."""
    data = write_data(tmp_path / "data", each=1)
    server = ScriptedServer(require_key(scripted_answers(), "another"))
    with server, pytest.raises(EndpointError) as caught:
        run_task(config(server.url, data, work_dir=str(tmp_path / "runs")))
    assert caught.value.run_path is not None
    assert caught.value.run_path.parent == tmp_path / "runs"


def test_passing_failures_are_owed_again_and_lasting_ones_when_asked(tmp_path: Path) -> None:
    """A 500 is tried again on resume; a content filter only with retry_failed; successes never."""
    data = write_data(tmp_path / "data", each=2)
    blocked = Response(text=None, finish_reason="content_filter")

    def script(seen: Seen, attempt: int) -> Response:
        if seen.kind == "model" and "clip 3 of" in seen.text:
            return Response(status=500)
        if seen.kind == "model" and "clip 5 of" in seen.text:
            return blocked
        return scripted_answers()(seen, attempt)

    settings = config("", data, tmp_path / "run", generation_config={"retry_interval": 0.01, "retries": 1})
    with ScriptedServer(script) as server:
        settings = replace(settings, api_url=server.url)
        assert settings.judge_model_args is not None
        settings.judge_model_args["api_url"] = server.url
        run = run_task(settings)
        assert run.summary.counts["failures"] == {"server_error": 1, "content_filter": 1}
        server.script = scripted_answers()
        server.reset()
        run = run_task(settings)
        assert len(asked(server)) == 1
        assert run.summary.counts["failures"] == {"content_filter": 1}
        run = run_task(replace(settings, retry_failed=["content_filter"]))
    assert run.summary.counts["scored"] == 16


def test_events_tell_the_whole_story(tmp_path: Path) -> None:
    """There is one event for the start, and one for each answer and verdict as it is stored."""
    data = write_data(tmp_path / "data", each=1)
    events: list[Event] = []
    with ScriptedServer() as server:
        run = run_task(config(server.url, data, tmp_path / "run"), on_event=events.append)
    started = [event for event in events if isinstance(event, RunStarted)]
    assert [(event.samples, event.answers_owed, event.verdicts_owed) for event in started] == [(8, 8, 16)]
    assert sum(isinstance(event, Answered) for event in events) == 8
    outcomes = list(run.outcomes())
    assert [set(outcome.verdicts) for outcome in outcomes] == [set(Order)] * 8
    assert all(isinstance(verdict, Verdict) for o in outcomes for verdict in o.verdicts.values())


def test_it_works_inside_a_running_event_loop(tmp_path: Path) -> None:
    """In a notebook, where a loop is running already, the blocking call does its work all the same."""
    data = write_data(tmp_path / "data", each=1)

    async def notebook() -> Run:
        return run_task(config(server.url, data, tmp_path / "run"))

    with ScriptedServer() as server:
        assert asyncio.run(notebook()).summary.counts["scored"] == 8


def test_a_dict_is_as_good_as_a_task_config(tmp_path: Path) -> None:
    """Settings may be given as a plain dict."""
    data = write_data(tmp_path / "data", each=1)
    with ScriptedServer() as server:
        typed = config(server.url, data, tmp_path / "run")
        given = {name: value for name, value in vars(typed).items() if value is not None}
        assert run_task(given).summary.counts["scored"] == 8


def test_torn_lines_are_owed_again_and_said(tmp_path: Path) -> None:
    """A torn tail and a run of NUL bytes cost their own calls, and the run ends with the same numbers."""
    data = write_data(tmp_path / "data", each=1)
    events: list[Event] = []
    with ScriptedServer() as server:
        whole = run_task(config(server.url, data, tmp_path / "run"))
        path = tmp_path / "run" / "verdicts.jsonl"
        stored = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(stored[:-2]) + b"\0" * 40 + b"\n" + stored[-1][:-30])
        server.reset()
        run = run_task(config(server.url, data, tmp_path / "run"), on_event=events.append)
        assert (len(asked(server)), len(judged(server))) == (0, 2)
    assert numbers(run) == numbers(whole)
    assert any(isinstance(event, Notice) and "2 lines" in event.message for event in events)


def test_failures_keep_their_message_for_people(tmp_path: Path) -> None:
    """samples.jsonl says of a failed sample what happened to it."""
    data = write_data(tmp_path / "data", each=1)
    (data / "Chat" / "speech_QA_tones" / "clip_0.wav").unlink()
    with ScriptedServer() as server:
        run = run_task(config(server.url, data, tmp_path / "run"))
    failed: Sequence[dict[str, Any]] = [
        line for line in lines(run.path / "samples.jsonl") if line["status"] == "failed"
    ]
    assert [(line["failure"], line["failure_stage"]) for line in failed] == [("missing_audio", "answer")]
    assert "clip_0.wav" in failed[0]["failure_message"]
    outcome = next(o for o in run.outcomes() if isinstance(o.answer, Failure))
    assert isinstance(outcome.answer, Failure)
    assert outcome.answer.kind is FailureKind.MISSING_AUDIO
