"""The wire form of the clip: another one is tried when the endpoint refuses the default, and remembered."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from otoscope import run_task
from otoscope.backends.endpoint import EndpointBackend
from otoscope.chat_api import ChatEndpoint
from otoscope.chat_api.replies import ServerError
from otoscope.chat_api.wire_form import speaks_of_audio_part
from otoscope.config import resolve
from otoscope.records import Answer, AudioClip, Failure, FailureKind, Sample
from tests.chat_helpers import make_clip
from tests.scripted_server import Response, Script, ScriptedServer, Seen
from tests.support import config, lines, model_endpoint, write_data

UNKNOWN = "Unknown part type: {form}"


def form_of(seen: Seen) -> str:
    """Return the form of the clip in a request."""
    part = next(p for p in seen.payload["messages"][-1]["content"] if p["type"] != "text")
    if part["type"] == "audio_url":
        return "file_url" if part["audio_url"]["url"].startswith("file:") else "audio_url"
    return "data_uri" if part["input_audio"]["data"].startswith("data:") else "input_audio"


def taking(*forms: str, message: str = UNKNOWN, status: int = 400, delay: float = 0.0) -> Script:
    """Take clips in these forms alone."""

    def script(seen: Seen, _attempt: int) -> Response:
        form = form_of(seen)
        if form in forms:
            return Response(text="A tone.")
        return Response(status=status, error={"message": message.format(form=form)}, delay=delay)

    return script


def sample(number: int) -> Sample:
    """Return a sample with a question of its own."""
    return Sample(
        task="speech_QA",
        dataset="tones",
        path="a.wav",
        uniq_id=number,
        question=f"What is heard in {number}?",
        reference="The reference.",
        description="{}",
        audio_path="/nowhere/a.wav",
        digest=f"{number:064}",
    )


def ask(
    tmp_path: Path, script: Script, *, first: int = 1, together: int = 0, **settings: Any
) -> tuple[list[Answer | Failure], list[str], list[str]]:
    """Ask about some clips one after the other, then about others at once.

    Returns what came of it, the forms that the server saw, and the notices.
    """
    clip = make_clip(tmp_path, 3000)
    assert isinstance(clip, AudioClip)
    notices: list[str] = []

    async def run(url: str) -> list[Answer | Failure]:
        resolved = resolve(config(url, tmp_path, **settings), {})
        async with ChatEndpoint(model_endpoint(resolved), notices.append) as endpoint:
            backend = EndpointBackend(endpoint, resolved.prompt)

            async def one(number: int) -> Answer | Failure:
                return await backend.answer(sample(number), clip, keep=lambda _: None)

            alone = [await one(number) for number in range(first)]
            return [*alone, *await asyncio.gather(*map(one, range(first, first + together)))]

    with ScriptedServer(script, keep_bodies=True) as server:
        results = asyncio.run(run(server.url))
        assert {seen.audio_sha256 for seen in server.requests} <= {clip.sha256, None}
        return results, [form_of(seen) for seen in server.requests], notices


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize(
    ("taken", "refused"), [("audio_url", ["input_audio"]), ("data_uri", ["input_audio", "audio_url"])]
)
def test_the_form_that_is_taken_is_remembered(
    tmp_path: Path, taken: str, refused: list[str], status: int
) -> None:
    """Each other form is tried once; then what was taken is sent, said once, and stored with each answer."""
    results, forms, notices = ask(tmp_path, taking(taken, status=status), first=2, together=4)
    assert forms == [*refused, *[taken] * 6]
    for result in results:
        assert isinstance(result, Answer)
        assert result.audio_part == taken
        assert [reply.audio_part for reply in result.replies] == [taken]
    (notice,) = notices
    assert f"refuses the clip as {' and '.join(refused)}; it gets {taken}" in notice


def test_requests_in_flight_are_sent_again_in_the_learnt_form(tmp_path: Path) -> None:
    """What was refused meanwhile goes again, and each sample is answered."""
    results, forms, notices = ask(tmp_path, taking("data_uri", delay=0.1), first=0, together=8)
    assert all(isinstance(result, Answer) and result.audio_part == "data_uri" for result in results)
    assert len(notices) == 1
    assert Counter(forms)["data_uri"] == 8
    assert Counter(forms)["input_audio"] == 8


def test_where_no_form_is_taken_the_first_refusal_is_told(tmp_path: Path) -> None:
    """The sample has failed after one request in each form; nothing is learnt, no path of ours was sent."""
    (failure,), forms, notices = ask(tmp_path, taking())
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.attempts) == (FailureKind.REJECTED, 3)
    assert failure.message.startswith(
        "400: Unknown part type: input_audio (the clip as input_audio; as audio_url 400"
    )
    assert (forms, notices) == (["input_audio", "audio_url", "data_uri"], [])


@pytest.mark.parametrize("form", ["input_audio", "audio_url", "data_uri", "file_url"])
def test_a_form_that_was_named_is_meant(tmp_path: Path, form: str) -> None:
    """No other one is tried; the failure names the flag."""
    (failure,), forms, _ = ask(tmp_path, taking(), audio_part=form)
    assert isinstance(failure, Failure)
    assert forms == [form]
    assert f"--audio-part {form}" in failure.message


def test_once_a_clip_was_taken_a_refusal_is_the_clips(tmp_path: Path) -> None:
    """The form is proven: what is refused in it has a fault of its own, whatever the words."""

    def script(seen: Seen, _attempt: int) -> Response:
        if "in 1?" in seen.text:
            return Response(status=400, error={"message": "input_audio: cannot be decoded"})
        return Response(text="A tone.")

    results, forms, notices = ask(tmp_path, script, first=3)
    assert [isinstance(result, Answer) for result in results] == [True, False, True]
    assert (forms, notices) == (["input_audio"] * 3, [])


def test_what_only_comes_with_another_form_is_learnt_as_well(tmp_path: Path) -> None:
    """A server that wants streaming, and then another form, gets both."""

    def script(seen: Seen, attempt: int) -> Response:
        if not seen.payload.get("stream"):
            return Response(status=400, error={"message": "This model only support stream mode"})
        wrong = "<400> InternalError.Algo.InvalidParameter: The provided URL does not appear to be valid."
        return taking("data_uri", message=wrong)(seen, attempt)

    (answer,), forms, notices = ask(tmp_path, script)
    assert isinstance(answer, Answer)
    assert forms == ["input_audio", "input_audio", "audio_url", "data_uri"]
    assert len(notices) == 2


def test_a_run_says_what_it_sent_and_learns_it_anew(tmp_path: Path) -> None:
    """Lines, summary and report's prompt name the form that was taken; a resume asks once in the default."""
    data = write_data(tmp_path / "data", each=4, tasks=["sound_QA"])
    with ScriptedServer(taking("audio_url"), keep_bodies=True) as server:
        run = run_task(config(server.url, data, tmp_path / "run", no_judge=True, limit=2))
        assert {line["audio_part"] for line in lines(run.path / "answers.jsonl")} == {"audio_url"}
        server.reset()
        run = run_task(config(server.url, data, tmp_path / "run", no_judge=True))
        assert Counter(map(form_of, server.requests)) == {"input_audio": 1, "audio_url": 2}
    assert run.summary.observed["model"]["audio_parts"] == {"audio_url": 4}
    assert run.summary.requested["prompt"]["audio_part"] == "input_audio"
    assert run.summary.prompt["audio_part"] == "audio_url"


OF_THE_PART = [
    # vLLM, llama.cpp, OpenAI, pydantic's words in SGLang and others, DashScope
    "Unknown part type: input_audio",
    "unsupported content[].type",
    "Invalid value: 'audio_url'. Supported values are: 'text', 'image_url', 'input_audio', 'refusal'.",
    "content blocks are expected to be either text or image_url type",
    "Invalid content type. input_audio is only supported by certain models.",
    "messages.0.content.0: Input tag 'input_audio' does not match any of the expected tags",
    "Unsupported content part type: audio",
    "<400> InternalError.Algo.InvalidParameter: The provided URL does not appear to be valid.",
]
OF_SOMETHING_ELSE = [
    "The audio file could not be decoded or its format is not supported.",
    "Unsupported parameter: 'max_tokens'",
    "Invalid type for 'max_tokens': expected an integer",
    "audio is too long: 40 s",
    "the audio is not supported",
]


@pytest.mark.parametrize("message", OF_THE_PART)
def test_servers_words_for_a_part_that_they_do_not_know(message: str) -> None:
    """They are about the form of the part."""
    assert speaks_of_audio_part(ServerError(message))


@pytest.mark.parametrize("message", OF_SOMETHING_ELSE)
def test_servers_words_for_other_trouble(message: str) -> None:
    """They are about the clip, or about another parameter."""
    assert not speaks_of_audio_part(ServerError(message))


def test_the_place_of_the_error_counts_as_well() -> None:
    """OpenAI names the part in ``param``."""
    assert speaks_of_audio_part(ServerError("Invalid value: 'x'.", param="messages[0].content[0].type"))
