from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otoscope import audio
from otoscope.backends.endpoint import EndpointBackend
from otoscope.chat_api import ChatEndpoint
from otoscope.config import resolve
from otoscope.records import Answer, AudioClip, Failure, FailureKind, Reply, Sample
from tests.chat_helpers import sent_audio
from tests.scripted_server import Response, Script, ScriptedServer, sequence
from tests.support import config, model_endpoint, write_wav

SAMPLE = Sample(
    task="speech_QA",
    dataset="tones",
    path="a.wav",
    uniq_id=1,
    question="What is {question} heard?",
    reference="The reference.",
    description="{}",
    audio_path="/nowhere/a.wav",
    digest="d" * 64,
)


def ask(
    tmp_path: Path, script: Script | Response, *, earlier: Sequence[Reply] = (), **settings: Any
) -> tuple[Answer | Failure, list[Failure], list[Any]]:
    """Ask a scripted model about a clip: its answer, what was kept on the way, the requests it got."""
    write_wav(tmp_path / "a.wav")
    clip = audio.load(str(tmp_path / "a.wav"))
    assert isinstance(clip, AudioClip)
    clip = replace(clip, **settings.pop("clip", {}))
    kept: list[Failure] = []

    async def run(url: str) -> Answer | Failure:
        resolved = resolve(config(url, tmp_path, **settings), {})
        async with ChatEndpoint(model_endpoint(resolved), lambda _: None) as endpoint:
            backend = EndpointBackend(endpoint, resolved.prompt)
            return await backend.answer(SAMPLE, clip, earlier=earlier, keep=kept.append)

    answer = script if callable(script) else sequence(script)
    with ScriptedServer(answer, keep_bodies=True) as server:
        return asyncio.run(run(server.url)), kept, [seen.payload for seen in server.requests]


def test_one_user_message_with_the_audio_first(tmp_path: Path) -> None:
    """The model gets the clip, then the question, and no system message of ours."""
    answer, _, (payload,) = ask(tmp_path, Response(text="A tone."))
    assert isinstance(answer, Answer)
    assert (answer.raw_text, answer.text) == ("A tone.", "A tone.")
    (message,) = payload["messages"]
    assert message["role"] == "user"
    assert [part["type"] for part in message["content"]] == ["input_audio", "text"]
    assert message["content"][1]["text"] == "What is {question} heard?"
    assert payload["temperature"] == 0
    assert payload["max_tokens"] == 2048
    assert set(payload) == {"model", "messages", "temperature", "max_tokens"}


def test_prompt_settings_change_what_is_sent(tmp_path: Path) -> None:
    """Template, system prompt and part order are sent as they were asked for."""
    args = {"local_path": str(tmp_path), "prompt_template": "Q: {question}"}
    _, _, (payload,) = ask(
        tmp_path,
        Response(),
        system_prompt="Be brief.",
        part_order="text-first",
        dataset_args={"air_bench_chat": args},
        generation_config={},
    )
    system, user = payload["messages"]
    assert system == {"role": "system", "content": "Be brief."}
    assert [part["type"] for part in user["content"]] == ["text", "input_audio"]
    assert user["content"][0]["text"] == "Q: What is {question} heard?"
    assert set(payload) == {"model", "messages"}


@pytest.mark.parametrize("form", ["input_audio", "audio_url", "data_uri"])
def test_every_wire_form_carries_the_same_clip(tmp_path: Path, form: str) -> None:
    """Raw base64, an audio_url and a data URI all decode to the file's bytes."""
    write_wav(tmp_path / "a.wav")
    loaded = audio.load(str(tmp_path / "a.wav"))
    assert isinstance(loaded, AudioClip)

    async def run(url: str) -> None:
        resolved = resolve(config(url, tmp_path, audio_part=form), {})
        async with ChatEndpoint(model_endpoint(resolved), lambda _: None) as endpoint:
            await EndpointBackend(endpoint, resolved.prompt).answer(SAMPLE, loaded, keep=lambda _: None)

    with ScriptedServer() as server:
        asyncio.run(run(server.url))
        assert [seen.audio_sha256 for seen in server.requests] == [loaded.sha256]


def test_a_file_url_names_the_file(tmp_path: Path) -> None:
    """With file_url the server reads the file itself; no audio is sent."""
    _, _, (payload,) = ask(tmp_path, Response(), audio_part="file_url")
    part = payload["messages"][0]["content"][0]
    assert part == {"type": "audio_url", "audio_url": {"url": (tmp_path / "a.wav").as_uri()}}


def test_a_file_url_of_a_clip_that_needs_converting_is_refused(tmp_path: Path) -> None:
    """A file that the server could not read as it is fails by name, and nothing is sent."""
    clip = {"sent": sent_audio(b"RIFF"), "changed": ("flac to 16-bit wav",)}
    failure, _, payloads = ask(tmp_path, Response(), audio_part="file_url", clip=clip)
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.REJECTED
    assert "flac to 16-bit wav" in failure.message
    assert payloads == []


def test_a_blank_answer_is_asked_for_once_more(tmp_path: Path) -> None:
    """The second answer counts; the blank one was paid for and is kept."""
    answer, kept, payloads = ask(tmp_path, sequence(Response(text=" \n"), Response(text="A tone.")))
    assert isinstance(answer, Answer)
    assert answer.text == "A tone."
    assert [reply.text for reply in answer.replies] == [" \n", "A tone."]
    assert [failure.kind for failure in kept] == [FailureKind.ASKED_AGAIN]
    assert len(payloads) == 2


@pytest.mark.parametrize("text", ["", "  ", None])
def test_an_answer_blank_twice_is_judged_as_it_is(tmp_path: Path, text: str | None) -> None:
    """Leaving a blank answer out would reward silence."""
    answer, _, payloads = ask(tmp_path, Response(text=text))
    assert isinstance(answer, Answer)
    assert answer.blank
    assert answer.raw_text == (text or "")
    assert len(payloads) == 2


def test_an_interrupted_asking_goes_on(tmp_path: Path) -> None:
    """A blank reply from before a crash is not asked for a third time."""
    answer, kept, payloads = ask(tmp_path, Response(text=""), earlier=[Reply(text="", finish_reason="stop")])
    assert isinstance(answer, Answer)
    assert len(answer.replies) == 2
    assert (len(payloads), kept) == (1, [])


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (Response(text=None, finish_reason="content_filter"), FailureKind.CONTENT_FILTER),
        (Response(text="", reasoning="Hm", finish_reason="length"), FailureKind.CUT_WHILE_THINKING),
        (Response(text="<think>Hm", finish_reason="length"), FailureKind.CUT_WHILE_THINKING),
        (Response(text=None, finish_reason="length"), FailureKind.NO_ANSWER),
        (Response(text=None, finish_reason="tool_calls"), FailureKind.NO_ANSWER),
        (Response(text=None, finish_reason=None), FailureKind.NO_ANSWER),
        (Response(text="<think>Hm</think> "), FailureKind.BLANK_AFTER_FILTER),
    ],
)
def test_no_answer_is_a_failure_by_kind(tmp_path: Path, response: Response, kind: FailureKind) -> None:
    """Blocked, cut off while thinking, nothing said, nothing left after the filter: each by name."""
    failure, _, payloads = ask(tmp_path, response)
    assert isinstance(failure, Failure)
    assert failure.kind is kind
    assert len(failure.replies) == len(payloads) == 1


def test_an_answer_cut_at_its_limit_is_taken_as_it_is(tmp_path: Path) -> None:
    """A truncated answer is never extended silently."""
    answer, _, payloads = ask(tmp_path, Response(text="It is a", finish_reason="length"))
    assert isinstance(answer, Answer)
    assert answer.text == "It is a"
    assert len(payloads) == 1


def test_thinking_is_stripped_and_reasoning_kept_apart(tmp_path: Path) -> None:
    """What is judged is the answer; the raw text and the separate reasoning stay."""
    answer, _, _ = ask(tmp_path, Response(text="<think>Hm</think>\nA tone.", reasoning="Deep."))
    assert isinstance(answer, Answer)
    assert answer.text == "A tone."
    assert answer.raw_text == "<think>Hm</think>\nA tone."
    assert answer.reasoning == "Deep."
    assert answer.filtered


def test_the_answer_filter_is_a_setting(tmp_path: Path) -> None:
    """With another filter another part of the text is judged, and the rule is named."""
    answer, _, _ = ask(tmp_path, Response(text="Thus: <b>A tone.</b>"), answer_filter="regex:<b>(.*)</b>")
    assert isinstance(answer, Answer)
    assert (answer.text, answer.filter) == ("A tone.", "regex:<b>(.*)</b>")
