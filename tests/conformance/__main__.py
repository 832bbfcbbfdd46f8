"""Run the conformance suite and print its matrix.

Exit status 0 when everything is as expected, 1 when something failed or a language is missing, 2 for a wrong call.

Usage: python -m tests.conformance [--only LANGUAGE]... [--scenario NAME]... [--quick] [--present-only]
           [--json FILE] [--keep FOLDER] [--list]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

from tests.conformance.languages import LANGUAGES, Language
from tests.conformance.matrix import failed, table, write_json
from tests.conformance.scenario import load
from tests.conformance.suite import Result, Status, run_suite


def main() -> int:
    """Run what the arguments ask for."""
    arguments = _parser().parse_args()
    scenarios = [one for one in load(arguments.scenario) if not (arguments.quick and one.slow)]
    if not scenarios:
        _say("no scenario has such a name")
        return 2
    if arguments.list:
        for scenario in scenarios:
            needs = f" [{', '.join(sorted(scenario.needs))}]" if scenario.needs else ""
            _say(f"{scenario.name}{needs}: {scenario.about}", to=sys.stdout)
        return 0
    languages = _languages(arguments.only)
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True)
    began = time.monotonic()
    results = asyncio.run(run_suite(scenarios, languages, jobs=arguments.jobs, heard=_heard, folder=arguments.keep))
    _say(table(results), to=sys.stdout)
    for language in LANGUAGES:
        if language.untestable and language not in languages:
            _say(f"not tested: {language.name}, {language.untestable}", to=sys.stdout)
    _say(f"{len(scenarios)} scenarios, {len(languages)} languages, {time.monotonic() - began:.0f} s", to=sys.stdout)
    if arguments.json is not None:
        write_json(results, arguments.json)
    return 1 if failed(results, present_only=arguments.present_only) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance", description="Hold clients to one behaviour."
    )
    names = [language.name for language in LANGUAGES]
    parser.add_argument(
        "--only", action="append", choices=names, default=[], help="this language (may be repeated)"
    )
    parser.add_argument(
        "--scenario", action="append", default=[], help="NAME, FILE/NAME, or with * (may be repeated)"
    )
    parser.add_argument("--present-only", action="store_true", help="a missing runner is no failure")
    parser.add_argument("--quick", action="store_true", help="leave out what takes many seconds")
    parser.add_argument("--json", type=Path, help="write the results to this file too")
    parser.add_argument("--keep", type=Path, help="keep the servers' data and logs in this new folder")
    parser.add_argument("--jobs", type=int, default=2, help="scenarios at once in a language (2)")
    parser.add_argument("--list", action="store_true", help="list the scenarios and end")
    return parser


def _languages(only: list[str]) -> list[Language]:
    if only:
        return [language for language in LANGUAGES if language.name in only]
    return [language for language in LANGUAGES if not language.untestable]


def _heard(result: Result) -> None:
    if result.status is Status.FAIL:
        _say(f"{result.language} {result.scenario}: FAIL after {result.seconds:.1f} s")


def _say(text: str, *, to: object = sys.stderr) -> None:
    print(text, file=to, flush=True)  # type: ignore[call-overload]  # a text stream


if __name__ == "__main__":
    sys.exit(main())
