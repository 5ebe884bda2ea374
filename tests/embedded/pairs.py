"""Twelve questions with a good and a bad answer each, written for these tests in the benchmark's style."""

from __future__ import annotations

from dataclasses import dataclass

from otoscope.records import Sample


@dataclass(frozen=True, slots=True)
class Pair:
    """A question with what the judge reads of the clip, the reference, and two answers to tell apart."""

    name: str
    question: str
    description: str
    reference: str
    good: str
    bad: str

    @property
    def sample(self) -> Sample:
        """The question as a sample of the benchmark."""
        return Sample(
            task="speech_QA",
            dataset="pairs",
            path=f"{self.name}.wav",
            uniq_id=self.name,
            question=self.question,
            reference=self.reference,
            description=self.description,
            audio_path=f"/nowhere/{self.name}.wav",
            digest="0" * 64,
        )


PAIRS = (
    Pair(
        "speech_addressee",
        "Whom does the speaker ask to close the window?",
        "{'emotion': 'neutral', 'gender': 'female', 'transcription': \"Peter, would you close the window, "
        "please? It's getting cold in here.\"}",
        "The speaker asks Peter to close the window.",
        "She asks Peter to close it.",
        "She asks her mother to open the door.",
    ),
    Pair(
        "speech_emotion",
        "What emotion does the speaker express?",
        "{'emotion': 'angry', 'gender': 'male', 'transcription': 'I told you three times not to touch it! "
        "Why do you never listen?'}",
        "The speaker expresses anger.",
        "The man sounds angry and annoyed that nobody listens to him.",
        "The speaker is calm and happy.",
    ),
    Pair(
        "speech_gender",
        "What is the gender of the speaker, and what is announced?",
        "{'gender': 'female', 'age': 'thirties', 'transcription': 'The museum will close in fifteen minutes. "
        "Please make your way to the exit.'}",
        "The speaker is a woman, and she announces that the museum will close in fifteen minutes.",
        "It is a woman; she says that the museum closes in a quarter of an hour.",
        "It is a man who announces that a train is fifty minutes late.",
    ),
    Pair(
        "dialogue_reason",
        "Why does the woman cancel the dinner reservation?",
        "{'dialogue': [{'speaker': 'A', 'text': 'Good evening, Da Mario, how can I help you?'}, {'speaker': "
        "'B', 'text': 'I have a table for four tonight, but I need to cancel it. Two of us have fallen "
        "ill.'}, {'speaker': 'A', 'text': 'I am sorry to hear that. Shall I move it to next week?'}, "
        "{'speaker': 'B', 'text': 'Not yet, I will call again.'}]}",
        "She cancels it because two of the guests have fallen ill.",
        "Because two people of her party are sick.",
        "Because the restaurant is too expensive and too far away.",
    ),
    Pair(
        "dialogue_time",
        "At what time do the two speakers finally agree to meet?",
        "{'dialogue': [{'speaker': 'A', 'text': 'Can we meet at nine?'}, {'speaker': 'B', 'text': 'I have "
        "the dentist at nine. Half past ten?'}, {'speaker': 'A', 'text': 'Half past ten is fine with me.'}]}",
        "They agree to meet at half past ten.",
        "They settle on 10:30.",
        "They agree on nine o'clock.",
    ),
    Pair(
        "sound_events",
        "What happens after the dog barks?",
        "['A dog barks twice and then a car drives off.', 'Two barks of a dog are followed by a car that "
        "leaves.', 'A dog is barking before an engine starts and a car goes away.']",
        "After the dog barks, a car drives off.",
        "A car starts and drives away.",
        "A baby begins to cry and a woman sings to it.",
    ),
    Pair(
        "sound_weather",
        "What is the weather like in the recording?",
        "['Heavy rain falls on a roof while thunder rolls in the distance.', 'Rain is pouring and thunder "
        "rumbles far away.']",
        "It is raining heavily, with distant thunder.",
        "There is a rainstorm: heavy rain, and some thunder far off.",
        "It is a quiet and sunny day with birds singing.",
    ),
    Pair(
        "sound_story",
        "Imagine that this recording opens a film. Describe in two or three sentences what the audience "
        "hears, in the right order.",
        "['Footsteps on gravel come closer, a key is turned in a lock and a heavy door creaks open.', "
        "'Somebody walks over gravel, unlocks a door and opens it slowly.']",
        "Somebody walks towards us over gravel, step by step, and stops. A key turns in a lock. Then a heavy "
        "door opens slowly, creaking on its hinges.",
        "We hear steps on gravel coming nearer. A key is turned, and a heavy old door creaks as it slowly "
        "opens.",
        "The sea roars while people shout. A helicopter lands on the beach, and everyone claps.",
    ),
    Pair(
        "music_instrument",
        "Which instrument plays the melody?",
        "A slow instrumental piece. A solo cello plays the melody over soft piano chords. There is no "
        "percussion and no singing. The recording is clean.",
        "The melody is played by a cello.",
        "A cello plays it, with a piano behind it.",
        "An electric guitar with a lot of distortion plays it.",
    ),
    Pair(
        "music_tempo",
        "Is the tempo of this music fast or slow?",
        "An upbeat electronic dance track at about 128 beats per minute with a four on the floor kick drum, "
        "a synthesizer lead and female vocal samples.",
        "The tempo is fast.",
        "It is fast: about 128 beats per minute.",
        "It is a very slow ballad.",
    ),
    Pair(
        "speech_and_sound",
        "What sound is heard in the background while the man speaks?",
        "{'transcription': 'We have to be there before six.', 'gender': 'male', 'sound': ['a vacuum cleaner "
        "hums in the background']}",
        "A vacuum cleaner is heard in the background.",
        "The hum of a vacuum cleaner.",
        "The man speaks about being somewhere at six, and church bells are ringing behind him.",
    ),
    Pair(
        "speech_and_music",
        "What does the speaker say about the concert?",
        "{'transcription': 'The concert was moved to Saturday because the hall is being repaired.', "
        "'gender': 'female', 'music': 'a gentle piano piece plays softly behind the voice'}",
        "The speaker says that the concert was moved to Saturday because the hall is being repaired.",
        "It will be on Saturday instead, since the hall is under repair.",
        "The concert was a great success and all the tickets were sold.",
    ),
)
