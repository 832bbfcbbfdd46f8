"""Bounded shapes of generated objects: what the domain asks a language model for, and nothing wider.

A schema becomes a grammar that the in-process engine enforces token by token, a JSON schema for remote servers,
and the check that every answer passes again. Texts hold no quote, backslash or control character, so every
sentence of the grammar parses as JSON (the `maxLength` of xgrammar let control characters through).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeAlias

from clag_server.models.errors import UnusableCause, UnusableOutputError
from clag_server.models.number_grammar import whole_number

__all__ = [
    "Among",
    "Json",
    "ListOf",
    "Object",
    "OneOf",
    "Schema",
    "Text",
    "Whole",
    "ending_of",
    "grammar_of",
    "json_schema_of",
    "parse",
]

Json: TypeAlias = "str | int | list[Json] | dict[str, Json]"

_CHARACTER = r'[^"\\\[\]{}\x00-\x1f\x7f]'
_FORBIDDEN = frozenset('"\\\x7f') | {chr(code) for code in range(0x20)}


@dataclass(frozen=True, slots=True)
class Text:
    """A text of `least` to `most` characters, without quotes, backslashes and control characters."""

    least: int
    most: int

    def __post_init__(self) -> None:
        _check_bounds(self.least, self.most, 4096)


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some fixed texts."""

    values: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) != len(self.values):
            raise ValueError("a choice needs distinct values, at least one")
        if any(set(value) & _FORBIDDEN or not value for value in self.values):
            raise ValueError("a value is empty or has a quote, a backslash or a control character")


@dataclass(frozen=True, slots=True)
class Among:
    """A text of `least` to `most` characters, which a grammar takes from `values`.

    A small model in process needs its hand held; a server's model may write the text freely within its bounds, so
    that the JSON schema is the same for every question.
    """

    values: tuple[str, ...]
    least: int
    most: int

    def __post_init__(self) -> None:
        OneOf(self.values)
        Text(self.least, self.most)
        if not all(self.least <= len(value) <= self.most for value in self.values):
            raise ValueError(f"a value is not of {self.least}..{self.most} characters")


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number of `least` to `most`."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise ValueError(f"no whole number is in {self.least}..{self.most}")


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of `least` to `most` items."""

    item: Schema
    least: int
    most: int

    def __post_init__(self) -> None:
        _check_bounds(self.least, self.most, 256)


@dataclass(frozen=True, slots=True)
class Object:
    """An object with exactly these fields, written in this order."""

    fields: tuple[tuple[str, Schema], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.fields]
        if not names or len(set(names)) != len(names) or any(set(name) & _FORBIDDEN for name in names):
            raise ValueError("an object needs distinct plain field names, at least one")


Schema: TypeAlias = "Text | OneOf | Among | Whole | ListOf | Object"


def grammar_of(schema: Schema) -> str:
    """Return the schema as EBNF in xgrammar's dialect, start rule `root`."""
    rules: list[str] = []
    root = _expression(schema, rules)
    return "\n".join([f"root ::= {root}", *rules]) + "\n"


def ending_of(schema: Schema) -> str:
    """Return a text at least as long as what any begun value lacks to its nearest end.

    Its tokens are what a generation must keep back to be brought to its end: texts at their
    least, but the longest choice and number, and one list item more than needed, because one may have been begun.
    """
    match schema:
        case Text():
            # Tokenizers read digits one by one or nearly so: letters that say nothing take as many tokens.
            return '"' + ("7052918364" * (schema.least // 10 + 1))[: schema.least] + '"'
        case OneOf() | Among():
            return json.dumps(max(schema.values, key=lambda one: len(one.encode())), ensure_ascii=False)
        case Whole():
            return max(str(schema.least), str(schema.most), key=len)
        case ListOf():
            return "[" + ", ".join([ending_of(schema.item)] * min(schema.least + 1, schema.most)) + "]"
        case Object():
            fields = (f"{json.dumps(name, ensure_ascii=False)}: {ending_of(one)}" for name, one in schema.fields)
            return "{" + ", ".join(fields) + "}"


def json_schema_of(schema: Schema) -> dict[str, object]:
    """Return the schema as JSON Schema (2020-12), for servers that enforce one."""
    match schema:
        case Text() | Among():
            return {"type": "string", "minLength": schema.least, "maxLength": schema.most}
        case OneOf():
            return {"type": "string", "enum": list(schema.values)}
        case Whole():
            return {"type": "integer", "minimum": schema.least, "maximum": schema.most}
        case ListOf():
            items = json_schema_of(schema.item)
            return {"type": "array", "items": items, "minItems": schema.least, "maxItems": schema.most}
        case Object():
            return {
                "type": "object",
                "properties": {name: json_schema_of(one) for name, one in schema.fields},
                "required": [name for name, _ in schema.fields],
                "additionalProperties": False,
            }


def parse(schema: Schema, text: str, *, finished: bool = True) -> Json:
    """Read a generated text and check every bound again.

    Args:
        schema: What was asked for.
        text: What the model wrote; prose around the value is allowed.
        finished: False when the token limit cut the text.

    Returns:
        The value: dicts, lists, texts and whole numbers.

    Raises:
        UnusableOutputError: The text is not a value of the schema, with the cause.
    """
    try:
        value = json.loads(_without_prose(schema, text))
    except (ValueError, RecursionError) as error:
        cause = UnusableCause.NOT_JSON if finished else UnusableCause.CUT
        raise UnusableOutputError(cause, str(error), text) from error
    problem = _problem(schema, value, "answer")
    if problem is not None:
        raise UnusableOutputError(problem[0], problem[1], text)
    checked: Json = value
    return checked


def _without_prose(schema: Schema, text: str) -> str:
    if not isinstance(schema, (Object, ListOf)):
        return text
    opening, closing = ("{", "}") if isinstance(schema, Object) else ("[", "]")
    start, end = text.find(opening), text.rfind(closing)
    return text[start : end + 1] if 0 <= start < end else text


def _problem(schema: Schema, value: object, where: str) -> tuple[UnusableCause, str] | None:
    match schema:
        case Text() | OneOf() | Among():
            return _text_problem(schema, value, where)
        case Whole():
            # True is an int in Python, and 2.0 is no whole number here (case M2).
            if not isinstance(value, int) or isinstance(value, bool):
                return UnusableCause.WRONG_FIELDS, f"{where} is not a whole number"
            if not schema.least <= value <= schema.most:
                return UnusableCause.OUT_OF_BOUNDS, f"{where} is not in {schema.least}..{schema.most}"
            return None
        case ListOf():
            if not isinstance(value, list):
                return UnusableCause.WRONG_FIELDS, f"{where} is not a list"
            if not schema.least <= len(value) <= schema.most:
                return UnusableCause.OUT_OF_BOUNDS, f"{where} has {len(value)} items"
            problems = (_problem(schema.item, one, f"{where}[{i}]") for i, one in enumerate(value))
            return next((one for one in problems if one is not None), None)
        case Object():
            names = [name for name, _ in schema.fields]
            if not isinstance(value, dict) or set(value) != set(names):
                return UnusableCause.WRONG_FIELDS, f"{where} is not an object with {', '.join(names)}"
            problems = (_problem(one, value[name], f"{where}.{name}") for name, one in schema.fields)
            return next((one for one in problems if one is not None), None)


def _text_problem(schema: Text | OneOf | Among, value: object, where: str) -> tuple[UnusableCause, str] | None:
    if not isinstance(value, str):
        return UnusableCause.WRONG_FIELDS, f"{where} is not a text"
    if isinstance(schema, OneOf):
        if value not in schema.values:
            return UnusableCause.OUT_OF_BOUNDS, f"{where} is not one of those offered"
        return None
    surrogate = any(0xD800 <= ord(character) <= 0xDFFF for character in value)  # case M4
    if not schema.least <= len(value) <= schema.most or set(value) & _FORBIDDEN or surrogate:
        return UnusableCause.OUT_OF_BOUNDS, f"{where} is not a plain text of {schema.least}..{schema.most}"
    return None


def _expression(schema: Schema, rules: list[str]) -> str:
    """Return the schema's right-hand side, adding the rules that it needs."""
    match schema:
        case Text():
            return rf'"\"" {_CHARACTER}{{{schema.least},{schema.most}}} "\""'
        case OneOf() | Among():
            return "(" + " | ".join(_literal(json.dumps(one, ensure_ascii=False)) for one in schema.values) + ")"
        case Whole():
            return whole_number(schema.least, schema.most)
        case ListOf():
            return _list_expression(schema, rules)
        case Object():
            parts: list[str] = []
            for i, (name, one) in enumerate(schema.fields):
                parts.append(_literal(f"{', ' if i else '{'}{json.dumps(name, ensure_ascii=False)}: "))
                parts.append(_expression(one, rules))
            return " ".join([*parts, '"}"'])


def _list_expression(schema: ListOf, rules: list[str]) -> str:
    body = _expression(schema.item, rules)
    name = f"item{len(rules)}"
    rules.append(f"{name} ::= {body}")
    if schema.most == 0:
        return '"[]"'
    least, most = max(schema.least - 1, 0), schema.most - 1
    filled = f'"[" {name} (", " {name}){{{least},{most}}} "]"'
    return filled if schema.least else f'("[]" | {filled})'


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _check_bounds(least: int, most: int, limit: int) -> None:
    if not 0 <= least <= most <= limit:
        raise ValueError(f"bounds {least}..{most} are not within 0..{limit}")
