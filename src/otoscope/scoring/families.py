"""The name of a model -> its family: whether a judge is a relative of the model it judges."""

from __future__ import annotations

import re

_FAMILIES: dict[str, re.Pattern[str]] = {
    name: re.compile(rf"(?<![a-z0-9])(?:{pattern})")
    for name, pattern in {
        "Audio Flamingo": r"(?:audio|music)-?flamingo",
        "Baichuan": r"baichuan",
        "Claude": r"claude(?![a-z])",
        "Command": r"command-(?:a|r|light|nightly)(?![a-z])",
        "DeepSeek": r"deepseek",
        "Doubao": r"doubao",
        "ERNIE": r"ernie(?![a-z])",
        "Gemini": r"gemini(?![a-z])",
        "Gemma": r"(?:code|data|med|pali|shield|t5)?gemma(?![a-z])",
        "GLM": r"(?:chat)?glm(?![a-z])",
        # A bare "gpt" names many models that are not OpenAI's: MiniGPT, SpeechGPT, GPT-J, GPT4All.
        "GPT": r"chatgpt|gpt-?(?:\d(?!all|-x-)|audio|oss|realtime)|^(?:ft:|openai[-.])?o[134](?![a-z0-9])",
        "Granite": r"granite-(?:\d|speech)",
        "Grok": r"grok(?![a-z])",
        "Hunyuan": r"hunyuan",
        "InternLM": r"internlm",
        "Kimi": r"kimi(?![a-z])|moonshot-v\d",
        "Llama": r"(?:code)?llama(?![a-z]|\.cpp)",
        "MiMo": r"mimo-(?:\d|7b|audio|v\d|vl)",
        "MiniCPM": r"minicpm",
        "MiniMax": r"minimax",
        "Mistral": r"(?:codes|devs|magis|maths|minis|mis|mix|pix|vox)tral(?![a-z])",
        "Moshi": r"moshi(?:ka|ko)?(?![a-z])",
        "Nova": r"nova-(?:lite|micro|premier|pro|sonic)",
        "Phi": r"phi-?\d",
        "Qwen": r"(?:code)?qwen|qvq(?![a-z])|qwq(?![a-z])",
        "SALMONN": r"salmonn",
        # "step-2" and "step-2000" are names of checkpoints.
        "Step": r"^step-?audio|^step3|^step-[1-3](?:\.\d)?[ovx]?-",
        "Ultravox": r"ultravox",
        "Yi": r"yi-(?:\d|coder|large|lightning|vl)",
    }.items()
}
"""What the names of a family's models hold, in lower case with ``-`` for ``_`` and for spaces."""


def family(name: str) -> str | None:
    """Return the family (a maker's line) of the model that a server or a hub calls ``name``, or ``None``.

    Only the last part of a path or hub name counts: ``Qwen`` as an owner says nothing about what it owns. Of
    several families in a name the first counts ("DeepSeek-R1-Distill-Qwen-7B" is DeepSeek). A family is read
    from the name alone: what a model under its own name was built from is not known here (Vicuna from Llama,
    Audio Flamingo 3 from Qwen, a fine-tune called "my-model").
    """
    last = re.split(r"[/\\]", name.strip().rstrip("/\\"))[-1]
    spelled = re.sub(r"[_\s]+", "-", last.lower())
    found = [
        (match.start(), line) for line, pattern in _FAMILIES.items() if (match := pattern.search(spelled))
    ]
    return min(found)[1] if found else None
