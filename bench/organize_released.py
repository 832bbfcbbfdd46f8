"""The released algorithm's way with the same model: three free-form calls a memory, one after the other.

Prompts are written from the published descriptions of the algorithm and of the agentic memory that it grew from:
one call describes the note, one picks its cluster, one looks at its five nearest notes and says what becomes of
them. All ask for JSON in words, nothing constrains the answer, and it is cut at 300 tokens. Embedding and storing,
which the product's figure includes, are left out here.

`python -m bench.organize_released FOLDER --memories N [--quick]` prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Final

from bench.slm_direct import Direct
from bench.texts import repeated

ANSWER_TOKENS: Final = 300
NEIGHBOURS: Final = 5
MEASURED_ANSWER_TOKENS: Final = 211
"""Mean length of an answer of the released code with SmolLM2-135M (591 tokens a memory in 2.8 calls): what a quick
run, which writes no whole answer, takes for the length of one."""
_QUICK_TOKENS: Final = 32

_CLUSTERS: Final = (
    ("Energy of the robot", "Charging, the dock, what the gauge shows and when it misleads.", ("battery", "dock")),
    ("People on the shifts", "Who works when, what they like, need and must not eat.", ("crew", "family", "food")),
    ("Goods and deliveries", "Which orders leave when, by which door, and what is in stock.", ("pallet", "order")),
    ("Floors, doors and routes", "Where driving is slow, closed or dangerous, and why.", ("aisle", "door", "ramp")),
)


def describing(text: str) -> str:
    """Ask for keywords, context and tags of a note."""
    return (
        "You analyse notes of an agent and turn each into structured data.\n"
        "Work through these steps for the note below:\n"
        "1. Find the words that carry its meaning: nouns, verbs and key concepts. Leave out the speaker's name and "
        "the time. Order them from the most to the least important, at least three.\n"
        "2. Sum up in one sentence what the note is about: its main topic, its main points, and whom it is meant "
        "for or what it is good for.\n"
        "3. Give broad categories under which the note can be found again: field, format, type. At least three.\n"
        "Answer with a JSON object of this form and nothing else:\n"
        '{\n  "keywords": ["several specific words that stand for the note", "..."],\n'
        '  "context": "one sentence with topic, points and purpose",\n'
        '  "tags": ["several broad categories", "..."]\n}\n'
        f"Note to analyse:\n{text}\n"
    )


def routing(text: str, examples: list[str]) -> str:
    """Ask which cluster a note belongs to."""
    shown = "\n".join(
        f"Cluster {i}\n  title: {title}\n  summary: {about}\n  tags: {', '.join(tags)}\n  typical note: {example}"
        for i, ((title, about, tags), example) in enumerate(zip(_CLUSTERS, examples, strict=True))
    )
    return (
        "You keep the long-term memory of an agent in clusters of notes that belong together. A new note has come "
        "in. Compare its topic, its meaning and its possible use with the profile of each cluster, and choose the "
        "one cluster that it fits best. If it fits none of them at all, you may ask for a new cluster.\n"
        f"Clusters:\n{shown}\nNew note: {text}\n"
        "Answer with a JSON object of this form and nothing else:\n"
        '{\n  "cluster": 0,\n  "new_cluster": false,\n  "reason": "why this cluster and not another"\n}\n'
    )


def evolving(text: str, nearest: list[str]) -> str:
    """Ask what becomes of a note and of its nearest notes."""
    shown = "\n".join(
        f"Memory {i}\n  content: {one}\n  context: A note from the robot's shift\n"
        f"  keywords: {', '.join(one.split()[:4])}\n  tags: warehouse, robot, shift"
        for i, one in enumerate(nearest)
    )
    return (
        "You are the agent that keeps a memory base in order and lets it evolve. Look at the new note and at the "
        "notes that lie nearest to it, and decide whether the memory should evolve.\n"
        f"New note:\n  content: {text}\n  context: A note from the robot's shift\n"
        f"  keywords: {', '.join(text.split()[:4])}\nNearest notes:\n{shown}\n"
        "Decide from the relations between them:\n"
        "1. Should the memory evolve at all?\n"
        "2. Which actions are needed: strengthen (connect the new note with some of its neighbours), and update "
        "neighbours (describe neighbours anew in the light of the new note)?\n"
        "3. When strengthening: which neighbours are connected, and what are the new note's tags now?\n"
        "4. When updating: the new context and tags of each neighbour, in the order in which they are listed; "
        f"repeat the old ones where nothing changes. There are {len(nearest)} neighbours, so both lists have "
        f"{len(nearest)} entries.\n"
        "Answer with a JSON object of this form and nothing else:\n"
        '{\n  "should_evolve": true,\n  "actions": ["strengthen", "update_neighbor"],\n'
        '  "suggested_connections": [0],\n  "tags_to_update": ["tag"],\n'
        '  "new_context_neighborhood": ["context", "..."],\n'
        '  "new_tags_neighborhood": [["tag", "tag"], ["tag"]]\n}\n'
    )


def calls_of(texts: list[str], number: int) -> list[str]:
    """The three prompts of the note with this number; its neighbours are the notes before it."""
    text, before = texts[number], texts[max(0, number - NEIGHBOURS) : number]
    examples = texts[: len(_CLUSTERS)]
    return [describing(text), routing(text, examples), evolving(text, before)]


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--memories", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="measure rates and reckon, write no whole answer")
    arguments = parser.parse_args()
    direct = Direct(arguments.folder, arguments.device)
    texts = [text for text, _, _ in repeated(NEIGHBOURS + arguments.memories)]
    direct.generate([direct.ids(describing(texts[0]))], 4)
    numbers = range(NEIGHBOURS, NEIGHBOURS + arguments.memories)
    print(json.dumps(reckoned(direct, texts) if arguments.quick else measured(direct, texts, numbers)))


def measured(direct: Direct, texts: list[str], numbers: range) -> dict[str, float]:
    """Every call in full, one after the other."""
    tokens_in = tokens_out = calls = 0
    started = time.perf_counter()
    for number in numbers:
        for prompt in calls_of(texts, number):
            ids = direct.ids(prompt)
            tokens_in, calls = tokens_in + len(ids), calls + 1
            tokens_out += direct.generate([ids], ANSWER_TOKENS)
    seconds = time.perf_counter() - started
    return _result(seconds, len(numbers), calls, tokens_in, tokens_out)


def reckoned(direct: Direct, texts: list[str]) -> dict[str, float]:
    """From the time to read each prompt and the time to write a token, with answers of the length known before."""
    read_s = 0.0
    tokens_in = 0
    prompts = calls_of(texts, NEIGHBOURS)
    for prompt in prompts:
        ids = direct.ids(prompt)
        tokens_in += len(ids)
        started = time.perf_counter()
        direct.generate([ids], 1)
        read_s += time.perf_counter() - started
    ids = direct.ids(prompts[1])
    started = time.perf_counter()
    written = direct.generate([ids], _QUICK_TOKENS, least=_QUICK_TOKENS)
    again = time.perf_counter()
    direct.generate([ids], 1)
    token_s = max((again - started) - (time.perf_counter() - again), 1e-6) / (written - 1)
    tokens_out = MEASURED_ANSWER_TOKENS * len(prompts)
    return _result(read_s + tokens_out * token_s, 1, len(prompts), tokens_in, tokens_out) | {"reckoned": 1.0}


def _result(seconds: float, memories: int, calls: int, tokens_in: int, tokens_out: int) -> dict[str, float]:
    return {
        "released_memories_per_s": memories / seconds,
        "released_calls_per_memory": calls / memories,
        "released_tokens_in_per_memory": tokens_in / memories,
        "released_tokens_out_per_memory": tokens_out / memories,
        "released_tokens_out_per_s": tokens_out / seconds,
    }


if __name__ == "__main__":
    main()
