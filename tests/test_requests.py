"""Fidelity: the exact bytes that model and judge are sent."""

from __future__ import annotations

import json
from pathlib import Path

from otoscope import run_task
from tests.conftest import Golden
from tests.scripted_server import Response, ScriptedServer, Seen, scripted_answers
from tests.support import config, write_data

ANSWER = 'It says "hello", in a quiet room – ganz leise.\n'


def test_the_request_bodies_are_pinned(tmp_path: Path, golden: Golden) -> None:
    """The model's request and the judge's in both orders are, byte for byte, the golden files."""
    data = write_data(tmp_path / "data", each=1, tasks=["speech_QA"], seconds=0.01)

    def script(seen: Seen, attempt: int) -> Response:
        return Response(text=ANSWER) if seen.kind == "model" else scripted_answers()(seen, attempt)

    with ScriptedServer(script, keep_bodies=True) as server:
        run_task(config(server.url, data, tmp_path / "run"))
        model, *judges = server.requests
    golden.check("request_model.json", model.body)
    by_order = {seen.text.index(ANSWER) > seen.text.index("A steady tone"): seen.body for seen in judges}
    golden.check("request_judge_reference_first.json", by_order[True])
    golden.check("request_judge_answer_first.json", by_order[False])
    for seen in (model, *judges):
        assert int(seen.headers["content-length"]) == len(seen.body)
        assert seen.headers["content-type"] == "application/json"
        assert "transfer-encoding" not in seen.headers
        assert json.loads(seen.body)["model"].startswith("scripted")
