"""How far the SLM is trusted right now: what the settings and the competence probe say, in one place.

Stages ask at every decision, so a probe that ends takes effect at once, in all namespaces.
"""

from __future__ import annotations

from collections.abc import Callable

from clag_server.types.competence import (
    FULL_WEIGHT,
    ChoiceForm,
    ChoiceSetting,
    ProbeReport,
    Skill,
    Trust,
    TrustPolicy,
)

_NOTHING = Trust()
_ALL = Trust(dict.fromkeys(Skill, FULL_WEIGHT))


class Competence:
    """What is known of the SLM.

    Args:
        policy: Who says how far it is trusted.
        choice: Which form votes have.
    """

    def __init__(self, policy: TrustPolicy = TrustPolicy.PROBE, choice: ChoiceSetting = ChoiceSetting.AUTO) -> None:
        self._policy = policy
        self._choice = choice
        self._report: ProbeReport | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def policy(self) -> TrustPolicy:
        """Who says how far the SLM is trusted."""
        return self._policy

    @property
    def report(self) -> ProbeReport | None:
        """The outcome of the last probe of this model; None before one has ended."""
        return self._report

    @property
    def form(self) -> ChoiceForm:
        """The form that votes on routing have: as the settings say, else the best one for this model."""
        if self._choice.form is not None:
            return self._choice.form
        return ChoiceForm.CHANNEL if self._report is None else self._report.form

    @property
    def trust(self) -> Trust:
        """How far the SLM is trusted at each skill; at routing, in the form that votes have."""
        if self._policy is TrustPolicy.FULL:
            return _ALL
        if self._policy is TrustPolicy.NONE or self._report is None:
            return _NOTHING
        weights = {result.skill: result.weight for result in self._report.skills}
        if Skill.ROUTING in weights and self.form is not self._report.form:
            tried = {result.form: result.weight for result in self._report.forms}
            weights[Skill.ROUTING] = tried.get(self.form, 0.0)
        return Trust(weights)

    def learned(self, report: ProbeReport) -> None:
        """Take the outcome of a probe; whoever waits for it is told."""
        self._report = report
        for listener in self._listeners:
            listener()

    def on_learned(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever a probe has ended."""
        self._listeners.append(listener)
