"""What a server can do, found by asking it: once at the start, and again whenever it was away.

Nothing is believed because a request was accepted. A way of constraining output counts when it made the model
write something that it would never write by itself; prompt log-probabilities count when they have the right length
and find counting up likelier than counting in disorder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clag_server.models.remote_chat import CHAT_PATH, Form, GrammarField, chat_body, read_reply, shape
from clag_server.models.remote_failure import FailureKind, RemoteFailure
from clag_server.models.remote_scores import ScoreMethod, channel_score, read_scores, score_request
from clag_server.models.remote_text import contained_object
from clag_server.models.schema import Object, OneOf

if TYPE_CHECKING:
    from collections.abc import Callable

    from clag_server.models.remote_http import RemoteHttp

__all__ = ["Capabilities", "probe"]

_ASK: Final = "Write one short sentence about the sea."
_ASK_NO_JSON: Final = "Write one short sentence about the sea in plain words, not as JSON."
"""For the JSON mode: some servers insist on the word in the prompt, and asked for an object a model writes one
without being made to."""
_UNLIKELY: Final = "tin roof 7"
_SCHEMA: Final = Object((("answer", OneOf((_UNLIKELY,))),))
_GRAMMAR: Final = 'root ::= "tin roof " [7]\n'
_TOKENS: Final = 32

_HEAD: Final = "Count from one to twelve: one, two, three, four,"
_UP: Final = "five, six, seven, eight, nine, ten, eleven, twelve."
_DISORDER: Final = "nine, five, twelve, seven, six, eleven, eight, ten."


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What was found."""

    no_thinking: bool
    """The server takes `chat_template_kwargs`."""
    forms: frozenset[Form]
    """Ways of asking for an object that it honours; `TEXT` is always one."""
    grammar_field: GrammarField | None
    scores: ScoreMethod | None
    """How it gives prompt log-probabilities; None when it does not, and `choose` has no answer there."""
    scores_reason: str
    """Why not."""


async def probe(http: RemoteHttp, model: str) -> Capabilities:
    """Find out what a server can do; a handful of short requests.

    Raises:
        RemoteFailure: It does not answer a plain question with this model.
    """
    no_thinking = await _plain(http, model)
    trouble: list[RemoteFailure] = []

    async def honoured(form: Form, field: GrammarField | None, proves: Callable[[str], bool]) -> bool:
        is_object = form is Form.JSON_OBJECT
        prompt, fields = (
            shape(form, _ASK_NO_JSON, None, None, None)
            if is_object
            else shape(form, _ASK, _SCHEMA, _GRAMMAR, field)
        )
        body = chat_body(model, prompt, max_tokens=_TOKENS, no_thinking=no_thinking, fields=fields)
        try:
            return proves(read_reply(await http.post(CHAT_PATH, body)).text)
        except RemoteFailure as failure:
            trouble.append(failure)
            return False

    forms = {Form.TEXT}
    if await honoured(Form.JSON_SCHEMA, None, _has_value):
        forms.add(Form.JSON_SCHEMA)
    grammar_field = None
    for field in GrammarField:
        if await honoured(Form.GRAMMAR, field, lambda text: text.strip() == _UNLIKELY):
            grammar_field = field
            forms.add(Form.GRAMMAR)
            break
    if await honoured(Form.JSON_OBJECT, None, lambda text: text.lstrip().startswith("{")):
        forms.add(Form.JSON_OBJECT)
    scores, why = await _score_method(http, model, trouble)
    if any(one.kind is FailureKind.DOWN for one in trouble):
        # "Not offered" and "not there any more" look the same from one failed request.
        await _plain(http, model)
    return Capabilities(no_thinking, frozenset(forms), grammar_field, scores, why)


async def _plain(http: RemoteHttp, model: str) -> bool:
    """Ask a plain question; returns whether the template's switch may be sent along."""
    try:
        read_reply(await http.post(CHAT_PATH, chat_body(model, _ASK, max_tokens=4, no_thinking=True)))
    except RemoteFailure as failure:
        if failure.kind is not FailureKind.REFUSED:
            raise await _with_models(http, model, failure) from failure
    else:
        return True
    try:
        read_reply(await http.post(CHAT_PATH, chat_body(model, _ASK, max_tokens=4, no_thinking=False)))
    except RemoteFailure as failure:
        raise await _with_models(http, model, failure) from failure
    return False


async def _with_models(http: RemoteHttp, model: str, failure: RemoteFailure) -> RemoteFailure:
    """Add the names that the server has to a refusal that may be about the name."""
    if failure.kind not in (FailureKind.REFUSED, FailureKind.NOT_OFFERED):
        return failure
    try:
        listed = (await http.get("/models")).get("data")
    except RemoteFailure:
        return failure
    ids = [str(one.get("id")) for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    if not ids or model in ids:
        return failure
    shown = ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")
    return RemoteFailure(FailureKind.NOT_OFFERED, f"no model {model} there, but {shown} ({failure.reason})")


async def _score_method(
    http: RemoteHttp, model: str, trouble: list[RemoteFailure]
) -> tuple[ScoreMethod | None, str]:
    reasons = []
    prompts = [_HEAD, f"{_HEAD} {_UP}", f"{_HEAD} {_DISORDER}"]
    for method in ScoreMethod:
        path, own, body = score_request(method, model, prompts)
        try:
            head, up, disorder = read_scores(method, await http.post(path, body, own=own), len(prompts))
            better, worse = channel_score(up, head), channel_score(disorder, head)
        except RemoteFailure as failure:
            trouble.append(failure)
            reasons.append(f"{method.value}: {failure.reason}")
            continue
        # By a margin: rounding alone must not decide, and twelve words in disorder cost any model several nats.
        if better > worse + 1.0:
            return method, ""
        reasons.append(f"{method.value}: implausible ({better:.1f} for counting up, {worse:.1f} in disorder)")
    return None, "; ".join(re.sub(r"\s+", " ", one) for one in reasons)


def _has_value(text: str) -> bool:
    found = contained_object(text)
    return found is not None and _UNLIKELY in found and found == text.strip()
