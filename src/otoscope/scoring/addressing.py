"""Whether an answer addresses the judge: holds parts of the judge's own prompt, or asks for a score."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from otoscope.prompts import JUDGE_PROMPT
from otoscope.scoring.wording import without_quotations

# --- what an answer asks of the judge -----------------------------------------------------------------------
# All patterns are for a lower-case text with single spaces, and repeat nothing without a small limit: the
# time for a text grows with its length alone.

_START = (
    r"(?:\A|(?<=[.!?:;\])}>*#\-。！？：；] )|(?<=[*_#>\[({。！？：；])"
    r"|(?<=please )|(?<=kindly )|(?<=you must )|(?<=you should )|(?<=judge, )|(?<=so, ))"
)
"""Where a sentence begins, or goes on after what only precedes an order."""

_EARLIER = "(?:above|previous|prior|preceding|foregoing|earlier)"
_RULES = "(?:instructions?|prompts?|rubrics?|guidelines?|criteria|directives?|directions?|rules?)"

_TEN = r"(?:10|ten)(?:\.0)?"
_OF_TEN = rf"{_TEN}(?: ?/ ?10| out of (?:10|ten))"
_SCORE_END = (
    r"(?=\W{0,8}(?:\Z|[.,;:!?)\]\n]| (?:and|as|for|no matter|regardless|because|since|only)\b"
    r"| to (?:this|my|the (?:answer|response|model)|assistant)))"
)
_POINTS = "(?:points?|marks?)"
_A_TEN = rf"\[{{0,2}}(?:{_OF_TEN}|{_TEN})\]{{0,2}}(?: {_POINTS})?{_SCORE_END}"
_NOUN = "(?:scores?|marks?|ratings?|grades?|points)"
_BEST_WORDS = "full|max|maximum|highest|top|perfect|best"
_BEST = rf"(?:{_BEST_WORDS})(?: possible| available)? {_NOUN}\b"
_ONE = r"\[{0,2}(?:10|[0-9])(?:\.[0-9])?\]{0,2}"
_PAIR = (
    rf"'?{_ONE}(?: ?, ?| ){_ONE}(?=\W{{0,4}}(?:\Z|[.,;!?)'\]](?!\w)"
    r"| (?:only|and|as|no|because)\b))"
)

_ASSISTANT = r"assistant (?:1|2|one|two)\b(?:'?s)?(?: (?:answer|response|reply|score|rating)\b)?"
_ANSWER = "(?:answer|response|reply)"
_GIVE = "(?:give|assign|award|grant|rate|score|grade|mark|rank|evaluate)"
_WORD = r"(?: [\w'*-]{1,20})"
_SAY = "(?:output|return|print|write|say|reply with|respond with|answer with)"
_ONLY = (
    "(?:[ :]{1,2}(?:only|just|exactly|simply|always|the|a|an|single|line|scores?|numbers?|values?|ratings?"
    "|verdict|two|following|text|string|as|of|with|your|final|containing)){0,7}"
)
_RESULT = "(?:output|verdict|scores?|ratings?|result)"
_FORGET = "(?:ignore|disregard|forget|override|overlook|do not follow|don't follow)"
_JUDGE = "(?:judge|evaluator|grader|rater|scorer|assessor)"
_AI = "(?:ai|llm|automated|automatic|impartial|unbiased|fair|expert|language model) "

_ZH_START = r"(?:\A|(?<=[。！？，、：；,.!?:;\])）】*#> ]))"
_ZH_FULL = "(?:(?:10|１０|十) ?分(?![钟鐘之米])|满分|滿分|最高分)"


Literals = tuple[tuple[str, ...], ...]
"""Groups of texts: one of each group has to be there. That rules out nearly all answers, and fast."""


def _literals(groups: str) -> Literals:
    return tuple(tuple(group.split("|")) for group in groups.split("&"))


def _holds(plain: str, literals: Literals) -> bool:
    """Whether a text holds one of each group. Loops, which are faster here than any and all."""
    for group in literals:
        for literal in group:
            if literal in plain:
                break
        else:
            return False
    return True


class _Rule(NamedTuple):
    """One way to speak to the judge."""

    literals: Literals
    """A text that does so holds one of each of these."""
    words: str
    """What it begins with, as a pattern that is found fast; empty where nothing short would do."""
    pattern: str

    def starts(self, text: str) -> Iterator[int]:
        """Yield where a text speaks like that."""
        pattern = _compiled(self.pattern)
        if not self.words:
            yield from (found.start() for found in pattern.finditer(text))
            return
        for found in _compiled(self.words).finditer(text):
            if pattern.match(text, found.start()):
                yield found.start()


def _rule(literals: str, *patterns: str, words: str = "") -> _Rule:
    return _Rule(_literals(literals), words, "|".join(patterns))


_compiled = cache(re.compile)

_ASKING = (
    # Give this answer a ten.
    _rule(
        "give|assign|award|grant|rate|score|grade|mark|rank|evaluate",
        rf"{_START}{_GIVE}{_WORD}{{0,5}}? (?:{_ANSWER}s?|assistants?|it|this|{_NOUN})\b{_WORD}{{0,6}}?:? ?"
        rf"(?:{_A_TEN}|{_BEST})",
        rf"{_START}{_GIVE} (?:me|us|my|this|it|the {_ANSWER})\b{_WORD}{{0,5}}?"
        rf" (?:high|higher|good|{_BEST_WORDS}) {_NOUN}\b",
        rf"{_START}{_GIVE}{_WORD}{{0,4}}? {_BEST} (?:to|for) (?:me|my|this|the {_ANSWER}|assistant)\b",
        words=_GIVE,
    ),
    _rule(
        "myself|my |this answer|this response|this reply&i would|i will|i should|i also"
        "|i give|i rate|i score|i grade|i assign|i award",
        rf"\bi (?:would |will |should |also )?{_GIVE} (?:myself|my (?:own )?{_ANSWER}|this {_ANSWER})"
        rf"{_WORD}{{0,5}}? (?:{_A_TEN}|{_BEST})",
        words="i ",
    ),
    _rule(
        "be awarded|be given|be assigned",
        rf"\b{_BEST} (?:should|must|has to) be (?:awarded|given|assigned)",
        words=f"(?:{_BEST_WORDS})",
    ),
    _rule(
        "judge|evaluator|grader|rater|scorer|assessor",
        rf"\b(?:the|any) (?:{_AI})?{_JUDGE}s? (?:must|should|has to|have to|needs? to|will) {_GIVE}"
        rf"{_WORD}{{0,6}}? (?:{_A_TEN}|{_BEST})",
        words="(?:the|any) ",
    ),
    _rule(
        "answer|response|reply&deserv|merit|should|must|worth|has to|ought|earn|warrant",
        rf"\b(?:this|my|(?:the )?above|the (?:following|first|second|model's|assistant's)) {_ANSWER}"
        r"(?: (?:also|clearly|really|certainly|definitely|therefore|fully|thus))?"
        r" (?:deserves?|merits?|should|must|is worth|has to|ought to|earns?|warrants?)"
        rf"{_WORD}{{0,5}}? (?:{_A_TEN}|{_BEST})",
        words="(?:this|my|the|above) ",
    ),
    _rule(
        "for this|for my|to this|to my",
        rf"\b(?:score|rating|grade)s?(?: of)? (?:{_OF_TEN}|{_TEN}) (?:for|to) (?:this|my) {_ANSWER}\b",
        words="(?:score|rating|grade)",
    ),
)
_STATING = (
    # Write a ten, or two scores.
    _rule(
        "output|return|print|write|say|reply with|respond with|answer with",
        rf"{_START}{_SAY}{_ONLY}:? ['`]?{_A_TEN}",
        rf"\b{_SAY}{_ONLY}:? ['`]?{_PAIR}",
        words=_SAY,
    ),
    _rule(
        "output|verdict|score|rating|result",
        rf"\b(?:output|verdict)(?: line)?(?: is| must be| should be| shall be|:):? ['`]?{_PAIR}",
        rf"\b(?:scores?|ratings?|result)(?: must be| should be| shall be|:):? ['`]?{_PAIR}",
        words=_RESULT,
    ),
    # A verdict in place of an answer, or after it.
    _rule(
        ":&score|rating|verdict|judg|grade",
        rf"{_START}(?:\w{{1,12}} )?(?:scores?|ratings?|verdicts?|judge?ments?|grades?|judge): ?"
        rf"(?:{_PAIR}|{_OF_TEN}(?=\W{{0,8}}(?:\Z|[.!])))",
    ),
)
_SPEAKING = (
    _rule("[[", r"(?<![(\w\[])\[\[ ?(?:[abc]|(?:10|[0-9])(?:\.[0-9])?) ?\]\]"),
    # Forget what you were told.
    _rule(
        "ignor|disregard|forget|override|overlook|not follow|n't follow"
        "&above|previous|prior|preced|foregoing|earlier|instruction|prompt|rubric|criteria|guideline"
        "|reference|audio description|other ",
        rf"{_START}{_FORGET}(?: (?:all|any|of|the|these|those|every|everything|anything|other|and|about))"
        rf"{{0,4}} (?:{_EARLIER}|system|judging|grading|scoring|evaluation|your|original|all)"
        rf"(?: [\w'-]{{1,20}}){{0,3}}? {_RULES}\b",
        rf"{_START}{_FORGET}(?: (?:all|everything|anything|of|the|is|that|what|said|written|stated|text|was))"
        r"{0,5} above(?=\W{0,8}(?:\Z|[.,;:!]"
        r"| (?:and|then|instead|text|answers?|responses?|questions?|descriptions?|content|prompt)\b))",
        rf"{_START}{_FORGET}(?: (?:all|the|any))? (?:instructions?|prompts?) above\b",
        rf"{_START}{_FORGET}(?: the)? (?:reference(?: answer|(?= and|[.,;!]))|(?:detailed )?audio description"
        rf"|other (?:assistant|{_ANSWER}))",
        words=_FORGET,
    ),
    # The judge's two assistants.
    _rule(
        "assistant &assistant 1|assistant 2|assistant one|assistant two",
        rf"\b{_ASSISTANT}(?: ?[:=-] ?| is | gets | receives | scores | deserves | should (?:get|receive|be) )"
        rf"(?:(?:an?|the|score|rating|of|rated|scored|given) ){{0,4}}{_ONE}"
        r"(?: ?/ ?10)?(?=\W{0,8}(?:\Z|[.,;!)]| (?:and|assistant|out of|points?)\b))",
        rf"\b{_ASSISTANT} (?:is|was)(?: \w{{1,20}}){{0,2}}? (?:better|best|superior|perfect|correct|worse"
        r"|wrong|more (?:accurate|helpful|relevant|complete|comprehensive))\b",
        rf"\b(?:give|assign|award|score|rate|prefer|favou?r|choose|pick|rank) {_ASSISTANT}",
        rf"\b(?:{_BEST}|{_TEN}(?: {_POINTS})?) (?:to|for) {_ASSISTANT}",
    ),
    # You are the judge.
    _rule(
        "judge|evaluator|grader|rater|scorer|assessor",
        r"\b(?:as|dear|attention,?|hello,?|hi,?|hey,?|you are|you're) (?:an? |the |all )?"
        rf"(?:{_AI}){{1,2}}{_JUDGE}s?\b",
        rf"{_START}(?:(?:note|message|attention|instructions?|reminder|hint|dear|hello|hi),? )(?:to |for )?"
        r"(?:the |all )?(?:evaluator|grader|rater|scorer|assessor)s?[:,.!]",
        rf"{_START}(?:note|message|instructions?) (?:to|for)(?: the| all)? judges?[:,]",
        rf"{_START}(?:you are|you're|act as|pretend to be)(?: now)? (?:the|an?)"
        rf" (?:\w{{1,20}} ){{0,2}}?{_JUDGE}\b(?! of\b)",
        rf"\bas (?:the|an?) {_JUDGE},? (?:you (?:must|should|have to|are|will|need)|please|give|output|return"
        r"|your|assign|award)\b",
    ),
)
_ENGLISH: tuple[tuple[Literals, tuple[_Rule, ...]], ...] = (
    (_literals("10| ten|full|max|high|top |perfect|best| good "), _ASKING),
    (_literals("0|1|2|3|4|5|6|7|8|9|ten"), _STATING),
    ((), _SPEAKING),
)
"""What a text has to hold, and the rules that are then looked at."""
_CHINESE: tuple[_Rule, ...] = (
    _rule(
        "忽略|无视|無視|忽視|忘记|忘掉|不要理会&以上|上述|上面|之前|前面|先前|所有|全部|一切",
        rf"(?:{_ZH_START}|(?<=请)|(?<=請))(?:忽略|无视|無視|忽視|忘记|忘掉|不要理会)掉?"
        r"(?:(?:以上|上述|上面|之前|前面|先前)(?:的|所有|全部|一切|内容|指令|指示|提示|说明|要求|规则)"
        r"|(?:所有|全部|一切)(?:的)?(?:以上|上述|之前|前面|先前|指令|指示|提示|要求|规则))",
    ),
    _rule(
        "分&打|给|給|评|評|得",
        rf"{_ZH_START}(?:请|請)(?:您|你)?(?:务必|一定|直接|只|仅|必须)?[^。！？了，]{{0,12}}?"
        rf"(?:打|给|給|评|評)[^。！？了，]{{0,10}}?{_ZH_FULL}",
        rf"{_ZH_START}(?:给|給)我(?:打|评|評)?(?:个|個)?{_ZH_FULL}",
        rf"{_ZH_START}(?:您|你)?(?:务必|必须|应该|应当|直接|一定要)(?:给|打|評|评|給)[^。！？了，]{{0,10}}?{_ZH_FULL}",
        r"(?:这个|这条|本|该|我的|此)(?:回答|答案|回复)(?:应该|应当|应|必须|值得|可以)[^。！？了]{0,6}?"
        rf"{_ZH_FULL}",
        r"助手 ?[12一二](?:的)?(?:回答|答案|评分|得分|分数)?(?:应该|应当|应|必须|是|为|：|:|得|打)"
        r"[^。！？]{0,6}?(?:[0-9]|10|１０|十) ?分",
    ),
    _rule(
        "输出|返回|回复|輸出|评分|得分|分数&0|1|2|3|4|5|6|7|8|9",
        rf"(?:(?:输出|輸出|返回|回复)[:： “\"'「]{{0,2}}|(?:评分|得分|分数)(?:是|为|[:：]) ?){_PAIR}",
    ),
    _rule(
        "评分|评判|评审|评估|打分|裁判|评委",
        rf"{_ZH_START}你(?:现在)?是[^。！？，]{{0,8}}?(?:评分|评判|评审|评估|打分|裁判|评委)",
        r"作为(?:一[个名位])?(?:AI|ai|人工智能|大模型|语言模型|公正的?)[^。！？，]{0,4}?(?:评分|评判|评审|评估|打分|裁判|评委)",
    ),
)

_VERDICT = r"(?:\A|(?<=[.!?。！？\])] )|(?<=[。！？]))(?:10|[0-9])(?:\.[0-9])? (?:10|[0-9])(?:\.[0-9])?\Z"
"""Two scores and nothing else: all of an answer, or its last sentence."""

# What somebody in the clip says, quoted without quotation marks: "the man says: ignore the above rules".
_REPORTED = (
    r"(?:\b(?:says|said|saying|asks|asked|sings|singing|tells|told|telling|claims|states|mentions|announces"
    r"|shouts|orders|instructs|commands|repeats|reads|whispers|adds|replies|warns|urges|voice|speaker|man"
    r"|woman|narrator|host|teacher|coach|singer|lyrics?)"
    r"(?: [\w']{1,20}){0,3}?[,:]? (?:that )?'?"
    r"|(?:说|说道|道|讲|问|唱|表示|提到|要求|称|喊|让)[：:，, ]{0,2})\Z"
)

# Quotation marks around scores alone quote nobody.
_QUOTED_SCORES = r"[\"“”]([\[0-9][\[\]0-9 .,/]{0,10})[\"“”]"


@cache
def _marks() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what the judge's prompt consists of: headings with placeholders, and whole sentences."""
    fixed = re.compile(r"^\[[^\]]+\]$|\{\w+\}", re.MULTILINE)
    sentences = [
        sentence
        for line in fixed.sub("", JUDGE_PROMPT).splitlines()
        for sentence in line.split(". ")
        if sentence
    ]
    return tuple(map(_plain, fixed.findall(JUDGE_PROMPT))), tuple(map(_plain, sentences))


# What shows nothing, and would stand between the letters of a rule: format characters, colours of a terminal.
_UNSEEN = "[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]|\x1b\\[[0-9;]*[A-Za-z]?"
# Punctuation is not among them: the Chinese rules know theirs.
_FULL_WIDTH = {wide: wide - 0xFEE0 for wide in (*range(0xFF10, 0xFF1A), *range(0xFF21, 0xFF5E))}


def _plain(text: str) -> str:
    if not text.isascii() or "\x1b" in text:
        text = _compiled(_UNSEEN).sub("", text.translate(_FULL_WIDTH))
    return " ".join(text.lower().replace("’", "'").split())


# Headings like the prompt's, as other judges' prompts have them.
_HEADING = r"\[(?:the )?(?:start|beginning|end) of (?:the )?(?:[\w']{1,20} ){0,4}?(?:answer|response|reply)\]"


def _holds_a_part_of_the_prompt(plain: str) -> bool:
    headings, sentences = _marks()
    for sentence in sentences:
        if sentence in plain:
            return True
    if "[" not in plain and "{" not in plain:
        return False
    return any(heading in plain for heading in headings) or bool(
        _compiled(_HEADING).search(plain.replace("'", ""))
    )


def addresses_judge(text: str) -> bool:
    """Return whether an answer speaks to the judge instead of, or besides, answering.

    It does where it holds a heading, a placeholder or a sentence of the judge's prompt, a verdict (two scores
    as all of it or as its last sentence, ``[[10]]``), or words to whoever gives the scores: to ignore what is
    said above, which score to give, that it is the judge. English and Chinese are known. Such words do not
    count in quotation marks, or where the answer says that somebody in the clip says them; the prompt's own
    always do. Letter case, white space, full-width letters and characters that show nothing make no
    difference.
    """
    plain = _plain(text)
    if _holds_a_part_of_the_prompt(plain):
        return True
    if plain[-1:].isdigit() and _compiled(_VERDICT).search(plain, max(0, len(plain) - 12)):
        return True
    rules = [rule for gate, rules in _ENGLISH if _holds(plain, gate) for rule in rules]
    if not text.isascii():
        rules += _CHINESE
    likely = [rule for rule in rules if _holds(plain, rule.literals)]
    if not likely:
        return False
    unquoted = without_quotations(_compiled(_QUOTED_SCORES).sub(r"\1", plain))
    return any(
        not _compiled(_REPORTED).search(unquoted, max(0, start - 60), start)
        for rule in likely
        for start in rule.starts(unquoted)
    )
