"""The words of an answer: "I cannot hear", and the script it is written in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otoscope.scoring.wording import in_another_language, says_it_cannot_hear, script

CANNOT_HEAR = [
    "I'm sorry, but I can't listen to audio.",
    "I’m sorry, but I can’t listen to audio recordings. If you can describe the clip, I can help!",
    "I cannot hear the audio clip you mentioned.",
    "Sorry, I am unable to process audio files directly.",
    "I'm unable to directly listen to or analyze audio files, but I can give general advice.",
    "Unfortunately, I am not able to access the audio file.",
    "As a text-based AI, I would guess that a dog is barking.",
    "As an AI language model, I don't have the capability to hear sounds.",
    "As a large language model I cannot listen to the recording, but the speaker may be male.",
    "I'm a text-only model, so the question cannot be answered.",
    "I am just a text-based assistant.",
    "I don't have access to the audio.",
    "I do not have direct access to audio content, so my answer is a guess.",
    "I currently don't have the ability to listen to audio.",
    "I don't have ears.",
    "No audio file was provided.",
    "It looks like no audio was attached to your message.",
    "There is no audio.",
    "There's no audio file attached. Please upload the audio.",
    "The audio clip was not provided.",
    "It seems that the audio file hasn't been uploaded yet.",
    "The audio is missing from your message.",
    "The audio file doesn't seem to have been attached.",
    "There isn't any audio in your message.",
    "There seems to be no audio here, so I cannot answer.",
    "You haven't provided any audio.",
    "Please provide the audio clip so that I can answer the question.",
    "Could you please upload the audio file?",
    "I don't see any audio file in our conversation.",
    "I didn't receive any audio.",
    "I can only process text.",
    "I can only work with written text, so I have to guess.",
    "Without access to the audio, it is impossible to name the instrument.",
    "Without hearing the recording, I can only guess that it is a guitar.",
    "It is not possible for me to listen to the clip.",
    "Listening to audio files is beyond my capabilities.",
    "Audio input is not supported.",
    "I can't hear, process, or play audio.",
    "My capabilities are limited to text.",
    "Unable to process audio.",
    "I can't play sounds or hear them.",
    '"I am sorry, I cannot listen to audio."',
    "The sound of rain.\n\nNote that I cannot actually hear the recording.",
    "抱歉，我无法直接听取音频文件。",
    "作为一个文本模型，我不能处理音频。",
    "很抱歉，我没有收到音频文件。",
    "您没有提供音频，请上传音频文件。",
    "音频文件未提供。",
    "我無法播放音訊。",
    "申し訳ありませんが、音声を聞くことはできません。",
    "音声ファイルが添付されていません。",
    "죄송하지만 저는 오디오를 들을 수 없습니다.",
    "Lo siento, no puedo escuchar archivos de audio.",
    "No se ha proporcionado ningún archivo de audio.",
    "Desculpe, não consigo ouvir o áudio.",
    "Mi dispiace, non posso ascoltare file audio.",
    "Je suis désolé, je ne peux pas écouter de fichiers audio.",
    "Es tut mir leid, ich kann keine Audiodateien anhören.",
    "К сожалению, я не могу прослушать аудио.",
    "عذرا، لا أستطيع الاستماع إلى الملفات الصوتية.",
]
HEARD = [
    "The speaker says he cannot hear the music.",
    "The speaker says that I can't hear the audio.",
    "She says, 'I can't hear the recording', and hangs up.",
    "The man says: \"I'm sorry, I can't hear the audio.\"",
    "The man says “I can’t hear the recording” and laughs.",
    "I can't hear you, the line is bad.",
    "There is no audio of birds in the recording.",
    "There is no audible speech in the clip.",
    "No audible speech.",
    "No, the audio does not include any music.",
    "There is no music in the audio.",
    "I cannot hear any drums in this piece.",
    "I can't hear the audio clearly enough to tell the words.",
    "I don't hear any audio that sounds like a dog.",
    "I can't tell the gender of the speaker from the audio.",
    "I cannot identify the song in the audio clip.",
    "The audio provided is a recording of a violin.",
    "The audio clip is not very clear, but a man is speaking.",
    "The speaker is unable to hear the caller.",
    "The caller cannot access her files.",
    "The customer is told that no booking was provided.",
    "The speaker asks the listener to please provide a name.",
    "Please provide your name and your phone number after the tone.",
    "The woman lost access to the account.",
    "The sound is missing the bass.",
    "No information about the price is provided in the audio.",
    "The speaker does not provide a reason.",
    "He did not attach the invoice to the message.",
    "The text of the song is about love without an end.",
    "The recording was not made in a studio.",
    "The recording is available without charge.",
    "The clip includes only a text-to-speech voice.",
    "The music sounds as if it were played by an AI, without emotion.",
    "The audience cannot hear the singer because of the noise.",
    "They only sell text books.",
    "The clip does not contain speech; it is an instrumental track.",
    "An AI language model is what the speaker talks about.",
    "No.",
    "",
    "音频中没有音乐。",
    "说话者说他听不到音乐。",
    "说话人说他无法听到声音。",
    "我听不清最后一个词。",
    "无法从音频中判断说话者的性别。",
    "音频中没有提供具体信息。",
    "请提供您的姓名。",
    "男性は音楽が聞こえないと言っています。",
    "El hombre no puede abrir la puerta.",
    "Der Sprecher kann die Musik nicht hören.",
    "Мужчина говорит, что не слышит музыку.",
]


@pytest.mark.parametrize("answer", CANNOT_HEAR)
def test_an_answer_that_says_it_cannot_hear_is_noticed(answer: str) -> None:
    """Each usual way to say that one hears nothing, or was given nothing to hear, counts."""
    assert says_it_cannot_hear(answer)


@pytest.mark.parametrize("answer", HEARD)
def test_an_answer_about_the_clip_is_not_taken_for_one(answer: str) -> None:
    """What is heard, said, missing or unclear in a clip is not the answerer's own deafness."""
    assert not says_it_cannot_hear(answer)


@pytest.mark.parametrize("answer", CANNOT_HEAR)
def test_neither_case_nor_white_space_nor_what_surrounds_it_matters(answer: str) -> None:
    """The same words count in capitals, across lines, and after and before other sentences."""
    assert says_it_cannot_hear(answer.replace(" ", "\n  "))
    plain = answer.strip('"')
    assert says_it_cannot_hear(f"A guess first. {plain} The answer is a piano.")
    assert says_it_cannot_hear(answer.upper())


@given(st.text())
def test_any_text_can_be_asked_about(text: str) -> None:
    """No text, not even half a surrogate pair, makes any of the three fail."""
    assert says_it_cannot_hear(text) in (True, False)
    assert script(text) is None or script(text + text) == script(text)
    assert not in_another_language(text, text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("The speaker is a woman.", "Latin"),
        ("Une élève chante à l’église.", "Latin"),
        ("ＡＢＣＤＥＦＧ", "Latin"),
        ("说话的人是一位女性。", "Han"),
        ("話しているのは女性です。", "Kana"),
        ("ｷﾞﾀｰの音", "Kana"),
        ("말하는 사람은 여자입니다.", "Hangul"),
        ("Говорит женщина.", "Cyrillic"),
        ("المتحدثة امرأة", "Arabic"),
        ("वक्ता एक महिला है", "Devanagari"),
        ("ผู้พูดเป็นผู้หญิง", "Thai"),
        ("这段音乐的风格是 R&B 和 hip hop。", "Han"),
        ("商品名は「の」です", "Kana"),
        ("这家店叫优の良品，卖很多好吃的零食。", "Han"),
        ("是的", "Han"),
        ("No.", None),
        ("120 - 140 🎵", None),
        ("", None),
    ],
)
def test_the_script_is_that_of_most_letters(text: str, name: str | None) -> None:
    """Letters decide, not signs; a letter of Han weighs as a word's share; a few letters decide nothing."""
    assert script(text) == name


QUESTION = "What does the speaker say about the weather?"


@pytest.mark.parametrize(
    ("question", "answer", "other"),
    [
        (QUESTION, "The speaker says that it will rain.", False),
        (QUESTION, "说话者说明天会下雨。", True),
        (QUESTION, "说话者说：“It will rain tomorrow, and the day after it will snow.”", True),
        (QUESTION, "歌词里有 rain 和 snow 两个词。", True),
        (QUESTION, "The speaker says “明天会下雨，后天会下雪，大后天天气就好了” in Chinese.", False),
        (QUESTION, "The speaker says 下雨, which means rain.", False),
        (QUESTION, "明日は雨が降ると言っています。", True),
        (QUESTION, "Говорит, что будет дождь.", True),
        (QUESTION, "La personne dit qu'il va pleuvoir.", False),
        (QUESTION, "120", False),
        ("说话者是男性还是女性？", "这是一位女性。", False),
        ("说话者是男性还是女性？", "The speaker is a woman.", True),
        ("话者は何と言っていますか？", "男性", False),
        ("説明してください。どんな音ですか？", "雨声，雷声，没有人说话。", False),
        ("说话者是男性还是女性？", "女性が話しています。", True),
    ],
)
def test_another_language_is_told_by_its_script(question: str, answer: str, other: bool) -> None:
    """An answer in another script is noticed whatever it quotes, and one that only quotes another is not."""
    assert in_another_language(question, answer) is other
