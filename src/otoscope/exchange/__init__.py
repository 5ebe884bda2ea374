"""Foreign files: what the official scripts and other tools write -> rows, and rows -> samples.

Pure: a file becomes rows, and nothing here knows of run directories.

::

    reading     a file's JSON objects, whatever its line ends and however it was cut off
    rows        what one row says: of its sample, and of an answer or a verdict
    official    the official scripts' files, read and written
    answers     lines with an answer and whatever tells its sample; Chat_result_modelx.jsonl is one kind
    evalscope   evalscope's predictions/
    lmms_eval   lmms-eval's *_samples_*.jsonl
    formats     which of these a file is
    joining     which sample each row is about
    settling    what the rows of one sample say together
"""

from otoscope.exchange.formats import FORMATS, files_of, read_file
from otoscope.exchange.joining import UNJOINED, Joined, join
from otoscope.exchange.official import (
    BATCH_OUTPUT,
    CHAT_RESULT,
    CHAT_SCORE,
    batch_output_record,
    chat_result_record,
    chat_score_record,
)
from otoscope.exchange.rows import AnswerRow, Asked, Findings, ForeignFile, Row, VerdictRow
from otoscope.exchange.settling import Answers, Settled, is_unknown, settle

__all__ = [
    "BATCH_OUTPUT",
    "CHAT_RESULT",
    "CHAT_SCORE",
    "FORMATS",
    "UNJOINED",
    "AnswerRow",
    "Answers",
    "Asked",
    "Findings",
    "ForeignFile",
    "Joined",
    "Row",
    "Settled",
    "VerdictRow",
    "batch_output_record",
    "chat_result_record",
    "chat_score_record",
    "files_of",
    "is_unknown",
    "join",
    "read_file",
    "settle",
]
