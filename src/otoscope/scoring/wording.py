"""The words of an answer: whether it says that the model hears nothing, and in which script it is written."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import cache
from typing import NamedTuple

# --- "I cannot hear" --------------------------------------------------------------------------------------

_KIND = "(?:audio|sound|voice|music|media|wav|mp3)"
_PIECE = "(?:clip|file|recording|input|data|content|signal|track|sample|attachment|message)s?"
_DETERMINER = (
    "(?:the|any|an?|this|that|your|these|those|actual|real|provided|attached|uploaded|raw|live|specific"
    "|other)"
)
# All audio: neither "the audio clearly" nor "audio of birds", which somebody heard or listened for.
_AUDIO = (
    rf"(?:{_DETERMINER} )*(?:{_KIND}[ -]{_PIECE}|audio|recordings?|clips?|files?|attachments?)\b"
    r"(?! (?:clearly|well|properly|enough|quality|of (?!the|this|that|your)|that|which|like|after|before"
    r"|in the (?:back|first|last|begin|mid|end)))"
)
_SOUNDS = r"(?:actual |real )?(?:sounds?|speech|music)\b(?! (?:clearly|of|in|from|that|over|because))"
_ADVERB = "(?:currently|actually|directly|physically|really|simply|yet|unfortunately|also|still|just) "
_HEAR = (
    f"(?:{_ADVERB})*"
    "(?:hear|listen(?: to)?|process|access|play(?: back)?|analy[sz]e|receive|open|perceive|interpret)"
)
_HEARING = "(?:hearing|listening to|processing|accessing|playing|analy[sz]ing|perceiving)"
_ABILITY = "(?:ability|capability|capacity|means|tools|way)"
_HAVE_NO = rf"do not (?:{_ADVERB})*have (?:the |any |an? |direct )?"
_NO = f"(?:{_ADVERB})*(?:unable|not (?:able|equipped|designed|built)) to"
_HEAR_AUDIO = rf"{_HEAR}(?:(?:,| or|, or| and|/| nor) {_HEAR})*(?: \w+ (?:or|and))? (?:{_AUDIO}|{_SOUNDS})"
_I = r"i (?<!\wi )"  # the word; a form that begins with literals is searched several times faster
_GIVEN = (
    "(?:provided|attached|uploaded|included|supplied|shared|given|received|come through|loaded|sent"
    "|accessible|available)"
)
# Where a clause about the request ends; "no recording available of the concert" goes on about the clip.
_STOP = (
    r"(?=\W*(?:\Z|[.,;:!?)]| (?:so|and|but|here|yet|for me|with which)\b"
    r"| to (?:me|listen|hear|analy|process|answer)"
    r"| (?:in|with|to|from) (?:your|this|the) (?:message|question|request|prompt|conversation|chat|query)))"
)


class _Forms(NamedTuple):
    """Ways to say one thing. The words and literals rule out nearly all answers, which is fast."""

    words: frozenset[str]
    """A text in one of these forms has one of these words; empty for languages without spaces."""
    literals: tuple[str, ...]
    """It also holds one of these."""
    patterns: tuple[str, ...]


def _forms(words: str, literals: str, *patterns: str) -> _Forms:
    return _Forms(frozenset(words.split()), tuple(literals.split("|")), patterns)


# Compiled when an answer first needs one: all of them take longer than the rest of the start's imports.
_compiled = cache(re.compile)


_CANNOT_HEAR = (
    # I cannot hear.
    _forms(
        "i i'm",
        "i cannot|i can not|i could not|unable to|not able to|not equipped|not designed|not built|lack the"
        "|do not|did not|currently|actually|directly|unfortunately|simply|still|also",
        rf"{_I}(?:{_ADVERB})*(?:cannot|can not|could not|am {_NO}|{_HAVE_NO}{_ABILITY} to"
        rf"|lack the {_ABILITY} to) {_HEAR_AUDIO}",
        rf"{_I}{_HAVE_NO}(?:access to {_AUDIO}|ears\b)",
        rf"{_I}{_HAVE_NO}(?:audio|auditory|hearing)[ \w-]{{0,12}} (?:capabilit|abilit)",
        rf"{_I}{_HAVE_NO}{_ABILITY} to (?:{_ADVERB})*(?:hear|listen)\b",
        rf"{_I}am (?:{_ADVERB})*(?:unable|not able) to (?:{_ADVERB})*(?:hear|listen)\W*(?:\Z|[.,;])",
        rf"{_I}(?:do not|did not|cannot) (?:{_ADVERB})*(?:see|find|have|hear|receive|detect|get) {_AUDIO}",
    ),
    _forms(
        "sorry, sorry unfortunately, unable",
        "cannot|unable to|not able to",
        rf"(?:\A|[.!?] )(?:sorry,? |unfortunately,? )?(?:but )?(?:cannot|{_NO}) {_HEAR_AUDIO}",
    ),
    _forms(
        "without",
        "access to|hearing|listening",
        r"\bwithout (?:direct |any )?(?:access to|(?:actually |directly )?(?:hearing|listening to)) "
        rf"{_AUDIO},? (?:i\b|it(?:'s| is) (?:impossible|not possible|difficult|hard))",
    ),
    _forms("me", "possible for me to", rf"\b(?:impossible|not (?:currently )?possible) for me to {_HEAR}\b"),
    _forms("my", "beyond|outside", rf"\b{_HEARING} {_AUDIO} (?:is|are) (?:beyond|outside) (?:of )?my\b"),
    # What I am.
    _forms(
        "text text-based text-only",
        " a text| an ai text",
        r"\b(?:as|i am)(?: just| only)? an? (?:ai )?text[ -](?:based|only)\b",
    ),
    _forms(
        "as",
        "as an ai|as an artificial|language model",
        r"\bas an? (?:ai|artificial intelligence|(?:large )?language model)\b[^.!?]{0,60} "
        rf"(?:can ?not|unable to|not able to|{_ABILITY} to) (?:{_ADVERB})*(?:hear|listen)\b",
    ),
    _forms(
        "i my i'm",
        " text",
        rf"{_I}(?:{_ADVERB})*(?:can )?only (?:{_ADVERB})*"
        "(?:process|work with|understand|respond to|read|handle|interpret|support) (?:written |plain )?text",
        r"\b(?:my \w+ (?:is|are)|i am) limited to (?:\w+ ){0,2}text",
    ),
    _forms(
        "not isn't aren't don't doesn't",
        "support",
        r"\baudio (?:input|file|playback|processing|content)s? (?:is|are) not (?:currently |yet )?supported",
        r"\b(?:i|we|model|interface|chat) (?:do|does) not (?:currently |yet )?support (?:audio|sound)",
    ),
    # Nothing was given.
    _forms(
        "no isn't",
        "no audio|no recording|no sound|no actual|not any audio|not an audio",
        rf"\bno (?:actual )?(?:audio|recording|sound)(?: {_PIECE})? "
        r"(?:(?:was|is|were|has been|have been|(?:seems|appears) to (?:be|have been)) )?(?:actually )?"
        rf"{_GIVEN}{_STOP}",
        r"\bthere(?:'s| is| was| seems to be| appears to be) "
        rf"(?:no|not any|not an) audio(?: {_PIECE})?{_STOP}",
    ),
    _forms(
        "not isn't wasn't weren't hasn't haven't didn't don't doesn't",
        "provided|attached|uploaded|included|supplied|shared|given|received|come through|load|sent|accessible"
        "|available",
        rf"(?:audio|recording|clip|sound)(?: {_PIECE})?(?: you [^.!?]{{0,25}})? "
        r"(?:was|is|were|has|have|did|does|seems|appears) not (?:(?:seem |appear )?to )?(?:have )?"
        rf"(?:been |be )?(?:{_ADVERB})*{_GIVEN}{_STOP}",
    ),
    _forms(
        "missing missing. missing, missing; missing!",
        " missing",
        rf"\b(?:audio|recording)(?: {_PIECE})? (?:is|was|(?:seems|appears) to be) missing{_STOP}",
    ),
    _forms(
        "you",
        "you have not|you did not",
        rf"\byou (?:have|did) not (?:provide|attach|upload|include|share|send|sent)(?:d|ed)? {_AUDIO}",
    ),
    _forms(
        "please if",
        "please provide|please upload|please re|please attach|please share|please send|if you can"
        "|if you could|if you provide|if you upload|if you attach|if you share|if you send|if you describe",
        r"(?:\A|[.!?,:] |\b(?:you|and|but|so|then) )please (?:provide|(?:re-?)?upload|attach|share|send)"
        rf"(?: me)?(?: with)? {_AUDIO}",
        r"\bif you (?:can |could )?(?:provide|upload|attach|share|send|describe)"
        rf"(?: me)?(?: with)? (?:\w+ ){{0,4}}?{_AUDIO}",
    ),
    # Spanish, Portuguese, Italian, French, German.
    _forms(
        "puedo tengo posso consigo riesco sono",
        "audio|áudio|graba|grava|registr",
        r"\b(?:no (?:puedo|tengo la capacidad de)|não (?:posso|consigo)"
        r"|non (?:posso|riesco a|sono in grado di)) (?:\w+ )?"
        r"(?:escuchar|oír|procesar|acceder|reproducir|ouvir|escutar|processar|acessar|ascoltare|sentire"
        r"|elaborare|accedere)[^.!?]{0,30}\b(?:audio|áudio|grabaci|grava|registrazion)",
    ),
    _forms("se", "no se ha ", r"\bno se ha (?:proporcion|adjunt)\w+ (?:ningún )?(?:archivo de )?audio"),
    _forms(
        "je",
        "audio|enregistrement|son",
        r"\bje (?:ne (?:peux|suis)|n'ai) pas (?:\w+ ){0,4}?(?:d')?(?:écouter|entendre|traiter|accéder)"
        r"[^.!?]{0,30}\b(?:audio|enregistrement|sons?\b)",
    ),
    _forms(
        "ich",
        "audio|aufnahme",
        r"\bich kann (?:\w+ )?(?:keine|die|den|das|diese) (?:audio\w*|aufnahmen?)[ \w-]{0,20} (?:nicht )?"
        r"(?:an)?(?:hören|verarbeiten|abspielen)",
    ),
    # Russian, Arabic.
    _forms(
        "я",
        "я не ",
        r"\bя не (?:могу|умею) (?:\w+ )?(?:слушать|прослушать|слышать|услышать|обрабатывать|обработать"
        r"|воспроизвести)[^.!?]{0,20}(?:аудио|звук|запис)",
    ),
    _forms(
        "لا",
        "صوت|تسجيل",
        r"لا (?:أستطيع|يمكنني) (?:الاستماع|سماع|معالجة|الوصول)[^.!؟]{0,20}(?:صوت|تسجيل)",
    ),
    # Japanese, Korean.
    _forms(
        "",
        "ません|できない|不可能",
        r"(?:音声|音|オーディオ|録音)[^。、]{0,10}(?:聞く|聴く|再生する|処理する|聞き取る|分析する)ことは?が?"
        r"(?:でき(?:ません|ない)|不可能)",
        r"(?:音声|オーディオ|録音)[^。、]{0,10}(?:添付|提供|アップロード)されていません",
    ),
    _forms(
        "",
        "수 없|수가 없|되지 않",
        r"(?:오디오|음성|소리|녹음)[^.]{0,10}(?:들을|처리할|재생할|분석할|청취할) 수가? ?없",
        r"(?:오디오|음성|녹음)[^.]{0,10}(?:제공|첨부|업로드)되지 않",
    ),
    # Chinese; 听清 and 听出 are about what is in a clip.
    _forms(
        "",
        "无法|不能|没办法|没有能力|沒辦法|無法",
        r"(?:我|抱歉|对不起|型|助手)[^。！？他她]{0,12}(?:无法|不能|没办法|没有能力|沒辦法|無法)"
        r"(?:直接|真正|实际)?(?:听取|收听|听到|听(?!清|出|懂|众)|处理|访问|播放|接收|分析|聽|處理)"
        r"[^。！？]{0,12}(?:音频|录音|声音|音訊|錄音|聲音)(?!中|里|裡|的)",
    ),
    _forms(
        "",
        "没有|未|沒有",
        r"(?:没有|未|沒有)(?:看到|收到|找到|检测到|提供|上传|附上)(?:任何|您的|你的)?(?:音频|录音|音訊)"
        r"(?:文件|片段|内容|檔案)?(?=[。，,！]|\s*\Z)",
        r"(?:音频|录音|音訊)(?:文件|片段)?(?:没有|未|尚未|并未)(?:被)?(?:提供|上传|附上)(?=[。，,！]|\s*\Z)",
    ),
    _forms("", "请", r"请(?:您)?(?:重新)?(?:提供|上传|发送)(?:相关的?|该|完整的?)?(?:音频|录音)"),
)

# A person in the clip, quoted without quotation marks: "the speaker says that I can't hear the audio".
_REPORTING = re.compile(
    r"\b(?:says?|said|saying|asks?|asked|sings?|singing|claims?|states?|mentions?)[,:]? (?:that )?'?\Z"
)
_OPENING, _CLOSING = re.compile('["“„«「『]'), re.compile('["“”»」』]')


def says_it_cannot_hear(text: str) -> bool:
    """Return whether an answer says that its author hears nothing: cannot process audio, or was given none.

    It knows the usual forms of English and Chinese and a few of nine other languages. What an answer says
    about the clip ("the speaker says he cannot hear", "no audible speech") is not meant, nor what stands in
    quotation marks.
    """
    words = text.lower().replace("’", "'").split()
    plain, vocabulary, foreign = " ".join(words), set(words), not text.isascii()
    for contraction, full in (("can't", "cannot"), ("n't ", " not "), ("i'm ", "i am ")):
        plain = plain.replace(contraction, full)
    likely = [
        forms
        for forms in _CANNOT_HEAR
        if (not forms.words.isdisjoint(vocabulary) or (foreign and not forms.words))
        and any(literal in plain for literal in forms.literals)
    ]
    if not likely:
        return False
    unquoted = without_quotations(plain)
    starts = [
        found.start()
        for forms in likely
        for pattern in forms.patterns
        for found in _compiled(pattern).finditer(unquoted)
    ]
    return any(not _REPORTING.search(unquoted, max(0, start - 20), start) for start in starts)


def without_quotations(text: str) -> str:
    """Remove what is quoted, except where nothing else is left."""
    kept, end = [], 0
    # Not one pattern: it would look for the end of each mark that opens, and of many that never close.
    while (opening := _OPENING.search(text, end)) and (closing := _CLOSING.search(text, opening.end())):
        kept.append(text[end : opening.start()])
        end = closing.end()
    rest = " ".join([*kept, text[end:]])
    return rest if any(map(str.isalpha, rest)) else text


# --- scripts ----------------------------------------------------------------------------------------------

_SCRIPTS = {
    "CJK": "Han",
    "IDEOGRAPHIC": "Han",
    "HIRAGANA": "Kana",
    "KATAKANA": "Kana",
    "KATAKANA-HIRAGANA": "Kana",
} | {
    name.upper(): name
    for name in (
        "Latin Hangul Cyrillic Arabic Greek Hebrew Thai Devanagari Bengali Tamil Telugu Gujarati Gurmukhi "
        "Kannada Malayalam Sinhala Myanmar Khmer Lao Tibetan Georgian Armenian Ethiopic Mongolian"
    ).split()
}
"""The first word of a letter's Unicode name -> its script."""

_WORTH = {"Han": 3, "Kana": 2, "Hangul": 2}
"""How many letters of an alphabet one of these stands for."""

_FEW_LETTERS = 6
_SAMPLE = 400  # characters; of a longer text only every second, third, ... is looked at, to be fast


def script(text: str) -> str | None:
    """Return the script of most of a text's letters ("Latin", "Han", ...); ``None`` under six letters.

    One letter of Han counts as three, of Kana or Hangul as two. Han and Kana together are Kana, as Japanese
    writes both, unless under a tenth of them is Kana.
    """
    counts: Counter[str] = Counter()
    for letter, count in Counter(text[:: 1 + len(text) // _SAMPLE]).items():
        if name := _script_of(letter):
            counts[name] += count
    if counts["Kana"] * 9 >= counts["Han"] and counts["Kana"]:
        counts["Kana"] += counts.pop("Han", 0)
    worth = {name: count * _WORTH.get(name, 1) for name, count in counts.items()}
    if sum(worth.values()) < _FEW_LETTERS:
        return None
    return min(worth, key=lambda name: (-worth[name], name))


def in_another_language(question: str, answer: str) -> bool:
    """Return whether an answer is in another language than its question, as far as their scripts tell.

    Only scripts are compared: a French answer to an English question is not noticed. Quotations are left out
    on both sides, so that an answer may quote another language. False where either has too few letters, and
    for an answer in Han alone to a Japanese question, which can be Japanese.
    """
    if question.isascii() and answer.isascii():
        return False
    asked, answered = script(without_quotations(question)), script(without_quotations(answer))
    if asked is None or answered is None or (asked, answered) == ("Kana", "Han"):
        return False
    return asked != answered


@cache
def _script_of(letter: str) -> str | None:
    if not letter.isalpha():
        return None
    first, _, rest = unicodedata.name(letter, "").partition(" ")
    return _SCRIPTS.get(rest.partition(" ")[0] if first in ("FULLWIDTH", "HALFWIDTH") else first)
