"""Whole evaluations of local models by the real command: judged, killed, resumed, refused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.extras.tiny_models import audio_flamingo, deaf, qwen2_audio
from tests.hub_servers import HubServer, serving
from tests.scripted_server import ScriptedServer
from tests.support import command, environment, lines, otoscope, write_data

pytestmark = pytest.mark.extras

# Threads that wait for each other are most of what a tiny model does on a busy machine.
ENVIRON = {"OMP_NUM_THREADS": "1", "NO_PROXY": "*"}
SAMPLES = 16
MINUTES = 300.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a data set: two samples of each task."""
    return write_data(tmp_path_factory.mktemp("data"), each=2, seconds=0.5)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a Qwen2-Audio model."""
    return qwen2_audio(tmp_path_factory.mktemp("models") / "tiny-qwen")


def arguments(model: Path | str, data: Path, run: Path, *more: str, tokens: int = 8) -> list[str]:
    """Return the arguments of an evaluation without a judge."""
    return [
        "eval", "--model", str(model), "--data", str(data), "--no-judge", "--run-dir", str(run),
        "--generation-config", f"max_tokens={tokens}", *more,
    ]  # fmt: skip


def evaluated(*given: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run an evaluation to its end."""
    return otoscope(*given, environ={**ENVIRON, **environ}, timeout=MINUTES)


def answers(run: Path) -> dict[str, str]:
    """Return the answers of a run, each of which was given once."""
    found = lines(run / "answers.jsonl")
    texts = {line["key"]: line["raw_text"] for line in found}
    assert len(texts) == len(found)
    return texts


def stored(run: Path, name: str = "manifest.json") -> dict[str, Any]:
    """Return a JSON file of a run."""
    return dict(json.loads((run / name).read_text(encoding="utf-8")))


def test_a_local_model_is_evaluated_and_judged(model: Path, data: Path, tmp_path: Path) -> None:
    """A folder, a data set and a judge make a report; prompt, decoding and weights are kept with the run."""
    run = tmp_path / "run"
    with ScriptedServer() as server:
        judge = ["--judge-model", "scripted-judge", "--judge-api-url", server.url]
        given = [one for one in arguments(model, data, run, "--eval-batch-size", "4") if one != "--no-judge"]
        done = evaluated(*given, *judge, OTOSCOPE_JUDGE_API_KEY="k")
    assert done.returncode == 0, done.stderr
    assert "by transformers, 4 at a time" in " ".join(done.stderr.split())
    assert "tiny-qwen" in done.stdout
    assert "baseline" not in done.stdout
    assert stored(run, "summary.json")["counts"]["scored"] == SAMPLES
    prompt = (run / "rendered_prompt.txt").read_text(encoding="utf-8")
    assert "<|AUDIO|>x12<|audio_eos|>\nWhat is heard in clip 0 of speech_QA?<|im_end|>" in prompt
    asked = stored(run)["fingerprint"]["model"]
    assert asked["name"] == "tiny-qwen"
    assert asked["parameters"] == {"temperature": 0, "max_tokens": 8}
    assert len(asked["checkpoint"]["digest"]) == 64
    (reply,) = lines(run / "answers.jsonl")[0]["replies"]
    assert reply["parameters"]["do_sample"] is False
    assert reply["endpoint"].startswith("transformers ")


def test_the_size_of_a_batch_changes_no_answer(data: Path, tmp_path: Path) -> None:
    """One at a time, and four at a time in batches of like lengths, give the same answers to all samples."""
    folder = audio_flamingo(tmp_path / "tiny-flamingo")
    for size in (1, 4):
        done = evaluated(*arguments(folder, data, tmp_path / str(size), "--eval-batch-size", str(size)))
        assert done.returncode == 0, done.stderr
    assert len(answers(tmp_path / "1")) == SAMPLES
    assert answers(tmp_path / "1") == answers(tmp_path / "4")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_killed_run_goes_on_where_it_was(model: Path, data: Path, tmp_path: Path) -> None:
    """After SIGKILL the same command answers the rest, and all answers are those of an undisturbed run."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert evaluated(*arguments(model, data, whole, tokens=64)).returncode == 0
    given = arguments(model, data, killed, tokens=64)
    process = subprocess.Popen(command(*given), env=environment(**ENVIRON), stderr=subprocess.DEVNULL)
    file = killed / "answers.jsonl"
    while process.poll() is None and (not file.exists() or file.read_bytes().count(b"\n") < 3):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = len(lines(file))
    assert 3 <= done < SAMPLES
    # It was another process's on this very machine, which is gone: no need to wait for its lock.
    resumed = evaluated(*given)
    assert resumed.returncode == 0, resumed.stderr
    assert f"{SAMPLES - done} to answer" in resumed.stderr
    assert answers(killed) == answers(whole)


def test_other_weights_do_not_go_on_with_a_run(model: Path, data: Path, tmp_path: Path) -> None:
    """The same folder with another training's weights is refused by name; back again, the run goes on."""
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    run = tmp_path / "run"
    given = arguments(folder, data, run)
    assert evaluated(*given, "--limit", "1").returncode == 0
    before = (run / "answers.jsonl").read_bytes()
    shutil.rmtree(folder)
    qwen2_audio(folder, seed=1)
    refused = evaluated(*given)
    assert refused.returncode == 6
    assert "model.checkpoint: was" in refused.stderr
    assert (run / "answers.jsonl").read_bytes() == before
    shutil.rmtree(folder)
    shutil.copytree(model, folder)
    assert evaluated(*given).returncode == 0
    assert len(answers(run)) == SAMPLES


def test_a_dry_run_looks_and_loads_nothing(model: Path, data: Path, tmp_path: Path) -> None:
    """It tells what would be done, without a run directory."""
    done = evaluated(*arguments(model, data, tmp_path / "run"), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "by transformers" in done.stdout + done.stderr
    assert not (tmp_path / "run").exists()


def test_a_folder_without_a_processor_begins_no_run(model: Path, data: Path, tmp_path: Path) -> None:
    """What is missing is named before anything is made."""
    folder = Path(shutil.copytree(model, tmp_path / "checkpoint-500"))
    (folder / "processor_config.json").unlink()
    done = evaluated(*arguments(folder, data, tmp_path / "run"))
    assert done.returncode == 2
    assert "no processor: processor_config.json or preprocessor_config.json" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_model_that_does_not_hear_is_a_users_mistake(data: Path, tmp_path: Path) -> None:
    """It is found when the model is loaded: exit code 2, no traceback, and no answer."""
    folder = deaf(tmp_path / "deaf")
    (folder / "processor_config.json").write_text("{}", encoding="utf-8")
    done = evaluated(*arguments(folder, data, tmp_path / "run"))
    assert done.returncode == 2, done.stderr
    assert "takes no audio" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_clip_costs_its_own_sample(model: Path, tmp_path: Path) -> None:
    """Of a batch with a clip that cannot be decoded, the others are answered."""
    data = write_data(tmp_path / "data", each=4, tasks=["sound_QA"], seconds=0.5)
    clip = data / "Chat" / "sound_QA_tones" / "clip_2.wav"
    content = bytearray(clip.read_bytes())
    # A format that nothing decodes, in a header that is whole.
    content[20:22] = (0x1234).to_bytes(2, "little")
    clip.write_bytes(content)
    run = tmp_path / "run"
    done = evaluated(*arguments(model, data, run, "--eval-batch-size", "4"))
    assert done.returncode == 1, done.stderr
    found = {line["key"]: line for line in lines(run / "answers.jsonl")}
    failed = [key for key, line in found.items() if "failure" in line]
    assert failed == ["sound_QA/tones/clip_2.wav#2"]
    assert len(found) == 4


def test_a_model_of_the_hub_is_fetched_and_its_commit_is_the_run(
    model: Path, data: Path, tmp_path: Path
) -> None:
    """An id of the hub is fetched from where HF_ENDPOINT says; a newer commit does not go on with the run."""
    files = {path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}
    run = tmp_path / "run"
    given = arguments("lab/tiny-qwen", data, run)
    with serving(HubServer(files, "lab/tiny-qwen", kind="models")) as hub:
        environ = hub.environment(str(tmp_path / "cache"))
        done = evaluated(*given, "--limit", "1", **environ)
        assert done.returncode == 0, done.stderr
        commit = hub.revision
        assert stored(run)["fingerprint"]["model"]["checkpoint"] == {"commit": commit}
        hub.revision = commit[::-1]
        refused = evaluated(*given, **environ)
    assert refused.returncode == 6
    assert f"--model-revision {commit}" in refused.stderr
    again = evaluated(*given, "--model-revision", commit, **{**environ, "HF_HUB_OFFLINE": "1"})
    assert again.returncode == 0, again.stderr
    assert len(answers(run)) == SAMPLES


def test_ray_gives_the_same_answers_from_two_workers(model: Path, data: Path, tmp_path: Path) -> None:
    """Each worker loads the weights; the first prompt is kept, and the run is the same as without."""
    pytest.importorskip("ray")
    alone = evaluated(*arguments(model, data, tmp_path / "alone"))
    assert alone.returncode == 0, alone.stderr
    by_ray = evaluated(*arguments(model, data, tmp_path / "ray", "--engine", "ray", "--ray-workers", "2"))
    assert by_ray.returncode == 0, by_ray.stderr
    assert "worker 2 of 2" in by_ray.stderr
    assert answers(tmp_path / "ray") == answers(tmp_path / "alone")
    assert stored(tmp_path / "ray")["fingerprint"] == stored(tmp_path / "alone")["fingerprint"]
    prompts = [
        (tmp_path / run / "rendered_prompt.txt").read_text(encoding="utf-8") for run in ("ray", "alone")
    ]
    assert "<|AUDIO|>" in prompts[0]
    assert prompts[0].split("Audio 1")[0] == prompts[1].split("Audio 1")[0]
