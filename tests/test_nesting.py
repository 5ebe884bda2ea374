"""JSON that is nested deeply is refused where it is read, and nothing that is read fails over it later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otoscope import load_run
from otoscope.chat_api.replies import Completion, ServerError, read_completion, read_error, read_models
from otoscope.config import SelectionSettings, TaskConfig, resolve
from otoscope.dataset import load
from otoscope.errors import ConfigError, DatasetError, RunDirectoryError
from otoscope.exchange.reading import read_records
from otoscope.nesting import MAX_DEPTH, STORED_DEPTH, TooDeepError, decoded, refuse_deep
from tests.scripted_server import Response, ScriptedServer, scripted_answers
from tests.support import flags, lines, otoscope, write_data

DEPTHS = (MAX_DEPTH, 250, 300, 600, 900, 990, 2_000, 100_000)
"""About the bound, what orjson writes, what Python's recursion bears within calls, and far above."""


def nested(depth: int, form: str = "list") -> str:
    """Return JSON of so many lists or objects within each other."""
    opening, closing = {"list": ("[", "]"), "object": ('{"a":', "}")}[form]
    return opening * depth + "0" + closing * depth


@pytest.mark.parametrize("form", ["list", "object"])
@pytest.mark.parametrize("kind", [str, str.encode])
def test_the_bound_is_exact(form: str, kind: Any) -> None:
    """At the bound it is read, one deeper it is refused, and far deeper too."""
    assert decoded(kind(nested(MAX_DEPTH, form)))
    for depth in (MAX_DEPTH + 1, *DEPTHS[1:]):
        with pytest.raises(TooDeepError, match="nested"):
            decoded(kind(nested(depth, form)))


FLAT = st.recursive(
    st.none() | st.text(max_size=3),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=2), inner),
)


@given(FLAT)
def test_whatever_is_flat_is_read(value: Any) -> None:
    """Brackets in texts, and many values beside each other, are no depth."""
    wide = [value, "[" * 100, *[[]] * 100]
    assert decoded(json.dumps(wide)) == wide
    refuse_deep(wide)


@pytest.mark.parametrize("depth", DEPTHS[1:])
def test_replies(depth: int) -> None:
    """A completion, an event of a stream, an error and a list of models may hold anything."""
    deep = nested(depth)
    usage = f'"usage":{{"a":{deep}}}'
    for body, kind in (
        (f'{{"choices":[{{"message":{{"content":"fine"}}}}],{usage}}}', "application/json"),
        (f'data: {{"choices":[{{"delta":{{"content":"fine"}}}}],{usage}}}\n\n', "text/event-stream"),
    ):
        read = read_completion(body.encode(), kind)
        assert isinstance(read, ServerError)
        assert "nested too deeply" in read.message
    assert isinstance(read_error(f'{{"error":{{"message":{deep}}}}}'.encode()), ServerError)
    assert read_models(f'{{"data":[{{"id":{deep}}}]}}'.encode()) is None


def test_the_deepest_reply_is_stored_and_read_back(tmp_path: Path) -> None:
    """What is read of a server can be written, read, reported and passed on."""
    data = write_data(tmp_path / "data", each=1, tasks=["sound_QA"])
    # In the reply it lies within an object; its own key makes it one more.
    usage = {"details": json.loads(nested(MAX_DEPTH - 2))}
    answers = scripted_answers()

    def script(seen: Any, attempt: int) -> Response:
        return Response(text=answers(seen, attempt).text, usage=usage)

    run = tmp_path / "run"
    with ScriptedServer(script) as server:
        done = otoscope(*flags(server.url, data, "--run-dir", str(run)))
        assert done.returncode == 0, done.stderr
    (line,) = lines(run / "answers.jsonl")
    assert line["replies"][0]["usage"] == usage
    assert load_run(run).summary.counts["scored"] == 1
    assert otoscope("export", str(run), "--bundle", str(tmp_path / "b.zip")).returncode == 0
    assert isinstance(read_completion(json.dumps({"choices": [{}], "usage": usage}).encode(), ""), Completion)


@pytest.mark.parametrize("depth", [900])
def test_a_server_that_nests_deeply_fails_its_samples(tmp_path: Path, depth: int) -> None:
    """No traceback, whatever the depth: the sample fails by name."""
    data = write_data(tmp_path / "data", each=1, tasks=["sound_QA"])
    body = f'{{"choices":[{{"message":{{"content":"fine"}}}}],"usage":{{"a":{nested(depth)}}}}}'.encode()
    with ScriptedServer(lambda _seen, _attempt: Response(body=body)) as server:
        done = otoscope(*flags(server.url, data, "--run-dir", str(tmp_path / "run"), "--no-judge"))
    assert "Traceback" not in done.stderr
    assert done.returncode == 1, done.stderr
    assert "nested too deeply" in done.stderr


@pytest.mark.parametrize("depth", DEPTHS[1:])
def test_metadata_and_foreign_files(tmp_path: Path, depth: int) -> None:
    """A data set, and a file to import, are refused or left out in words."""
    chat = write_data(tmp_path, each=1, tasks=["sound_QA"]) / "Chat" / "Chat_meta.json"
    text = chat.read_text(encoding="utf-8")
    chat.write_text(
        text.replace('"meta_info": ', f'"more": {nested(depth)}, "meta_info": '), encoding="utf-8"
    )
    selection = SelectionSettings(tasks=("sound_QA",), limit=None, shuffle=False, seed=1)
    with pytest.raises(DatasetError, match=r"is not valid JSON \(nested"):
        load(tmp_path, selection)
    for content in (f'{{"a": 1}}\n{{"b": {nested(depth)}}}\n', f'[{{"a": 1}}, {{"b": {nested(depth)}}}]'):
        file = tmp_path / "answers.jsonl"
        file.write_text(content, encoding="utf-8")
        records = read_records(file)
        assert [value for _, value in records.objects] == [{"a": 1}]
        assert records.findings.left_out == 1


def test_stored_lines(tmp_path: Path) -> None:
    """A line of a run that is nested deeply is skipped and counted, a summary is made anew."""
    data = write_data(tmp_path / "data", each=1, tasks=["sound_QA"])
    run = tmp_path / "run"
    with ScriptedServer() as server:
        assert otoscope(*flags(server.url, data, "--run-dir", str(run))).returncode == 0
    run_id = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["run_id"]
    deep = [depth for depth in DEPTHS if depth > STORED_DEPTH]
    for depth in deep:
        with (run / "answers.jsonl").open("a", encoding="utf-8") as file:
            file.write(f'{{"run": "{run_id}", "a": {nested(depth)}}}\n')
        (run / "summary.json").write_text(nested(depth), encoding="utf-8")
        assert load_run(run).summary.counts["scored"] == 1
    (skipped,) = [w for w in load_run(run).summary.warnings if w["name"] == "skipped_lines"]
    assert skipped["values"]["skipped"] == len(deep)


@pytest.mark.parametrize("depth", [depth for depth in DEPTHS if depth > STORED_DEPTH])
def test_manifests(tmp_path: Path, depth: int) -> None:
    """A manifest that is nested deeply is refused."""
    (tmp_path / "manifest.json").write_text(
        f'{{"format": 1, "run_id": "a", "more": {nested(depth)}}}', encoding="utf-8"
    )
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        load_run(tmp_path)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 300, 900, 2_000])
def test_settings(depth: int) -> None:
    """What is sent, and therefore stored with each reply, is bounded as what comes back is."""
    body: Any = 0
    for _ in range(depth):
        body = {"a": body}
    config = TaskConfig(model="m", api_url="http://127.0.0.1:9/v1", no_judge=True, extra_body=body)
    with pytest.raises(ConfigError, match="extra_body: cannot be written as JSON: "):
        resolve(config, {"OTOSCOPE_DATA": "."})


def test_what_is_stored_has_room_for_what_is_read() -> None:
    """A reply lies in a line at most so much deeper than in what a server sent."""
    assert STORED_DEPTH >= MAX_DEPTH + 4
