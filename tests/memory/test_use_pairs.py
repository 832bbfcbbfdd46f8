"""Notes of one use come together where the SLM says so, whatever their words: by doubles; models are reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from clag_server.memory.config import OrganizeConfig
from clag_server.memory.lexical import tokens
from clag_server.models.api import ChoiceOption
from clag_server.models.scripted import Script
from clag_server.types.routing import Strategy
from tests.memory.system import ScriptedModels
from tests.memory.use_pairs import groups, prepare, route


def test_the_test_set_has_groups_of_several_languages_whose_words_lead_astray() -> None:
    wanted = groups()
    assert len(wanted) >= 20
    assert len(Counter(group.language for group in wanted)) >= 6
    for group in wanted:
        lured = len(set(tokens(group.second)) & set(tokens(" ".join(group.lure))))
        used = len(set(tokens(group.second)) & set(tokens(" ".join(group.first))))
        assert lured >= max(used, 1), group.second


async def test_an_slm_that_knows_the_use_puts_together_what_words_would_part(tmp_path: Path) -> None:
    wanted = [group for group in groups() if group.language == "en"][:3]
    use = {group.second: group.first for group in wanted}

    def knows(text: str, options: Sequence[ChoiceOption]) -> Sequence[float]:
        first = next((notes for second, notes in use.items() if second in text), ())
        return [-1.0 if any(note in option.head for note in first) else -50.0 for option in options]

    script = Script()
    models = ScriptedModels(script)
    await prepare(models, tmp_path, wanted)
    script.choose = knows
    organize = OrganizeConfig(strategy=Strategy.AGENTIC, cluster_cosine=0.05, pull_cosine=0.0)
    found = await route(models, tmp_path, wanted, organize)
    assert any(one.voted for one in found)
    assert all(one.together for one in found if one.voted)
    asked = [call for call in script.calls if call.kind == "choose"]
    assert all(o.head.startswith("The agent: ") for call in asked for o in call.options)
