"""`clag probe`: examine the server's language model, and show what it may do."""

from __future__ import annotations

import click
from clag.v1 import admin_service_pb2 as pb
from clag_client import AsyncClient
from rich.table import Table

from clag_server.cli.connection import talk
from clag_server.cli.errors import CliError, ExitCode
from clag_server.cli.messages import as_json as to_json
from clag_server.cli.operations import follow, told
from clag_server.cli.options import ConnectionFlags, client_options, json_option
from clag_server.cli.output import console, print_document, table
from clag_server.cli.safe import one_line
from clag_server.cli.words import enum_word

__all__ = ["probe_command"]

_JOBS = {
    pb.PROBE_SKILL_ROUTING: "weighs which cluster a memory belongs to",
    pb.PROBE_SKILL_SELECTION: "weighs which clusters answer a question",
    pb.PROBE_SKILL_ANNOTATION: "writes context, keywords and tags",
    pb.PROBE_SKILL_EVOLUTION: "links memories and rewrites their neighbours",
}
_FORMS = {
    pb.CHOICE_FORM_CHANNEL: "likelihood",
    pb.CHOICE_FORM_LETTER: "letter",
    pb.CHOICE_FORM_JSON: "letter in JSON",
}
_STANDING_IN = {
    pb.PROBE_SKILL_ROUTING: "vectors decide where memories go",
    pb.PROBE_SKILL_SELECTION: "vectors and words choose clusters",
    pb.PROBE_SKILL_ANNOTATION: "keywords and tags come from the most distinctive terms",
    pb.PROBE_SKILL_EVOLUTION: "links come from likeness and time",
}


@click.command("probe")
@click.option("--last", is_flag=True, help="Show the last outcome and do not probe again.")
@click.option("--detach", is_flag=True, help="Begin it and do not wait for its end.")
@json_option
@client_options
def probe_command(*, connection: ConnectionFlags, last: bool, detach: bool, as_json: bool) -> ExitCode:
    """Examine the server's language model: what it can do better than the work that needs no model.

    It answers bundled questions in the background, and the server keeps serving. What it earned counts from then
    on, and after a restart. A probe that runs already is followed, not doubled; interrupting the command does not
    stop it.
    """
    if last and detach:
        raise CliError("--last shows what is known and begins nothing: leave out --detach", ExitCode.USAGE)

    async def known(client: AsyncClient) -> pb.GetServerInfoResponse:
        return await client.server_info(timeout_s=connection.timeout_s)

    async def work(client: AsyncClient) -> pb.Operation:
        begun = await client.run_probe(timeout_s=connection.timeout_s)
        return begun if detach else await follow(client, begun, quiet=as_json)

    if last:
        info = talk(connection, known)
        if info.HasField("probe"):
            _show(info.probe, as_json=as_json)
            return ExitCode.OK
        if info.slm.state == pb.MODEL_STATE_DISABLED:
            raise CliError("this server runs no language model (models.slm), so none was probed", ExitCode.PARTIAL)
        raise CliError("the model of this server was not probed yet: run `clag probe`", ExitCode.PARTIAL)
    return told(
        talk(connection, work), detach=detach, as_json=as_json, show=lambda ended: _show(ended.probe, as_json=False)
    )


def _show(probe: pb.ProbeResult, *, as_json: bool) -> None:
    if as_json:
        print_document(to_json(probe))
        return
    out = console()
    out.print(f"{one_line(probe.model)}, {probe.decisions_per_second:.2g} decisions a second")
    out.print(_table(probe))
    if probe.forms:
        out.print(_forms(probe))
    for line in _sentences(probe):
        out.print(line, soft_wrap=True)


def _table(probe: pb.ProbeResult) -> Table:
    shown = table(
        "skill", "questions#", "right#", "95% bounds#", "without it#", "usable#", "position bias#", "weight#"
    )
    for one in probe.skills:
        shown.add_row(
            _skill(one),
            f"{one.questions}",
            f"{one.accuracy:.0%}",
            f"{one.accuracy_low:.0%} to {one.accuracy_high:.0%}",
            f"{one.baseline_accuracy:.0%}",
            f"{one.valid_rate:.0%}",
            f"{one.position_bias:.2f}",
            f"{one.weight:g}",
        )
    return shown


def _forms(probe: pb.ProbeResult) -> Table:
    """Show how votes on routing did in each form, the one in use first."""
    shown = table("votes on routing", "questions#", "right#", "95% bounds#", "without it#", "usable#",
                  "position bias#", "weight#")  # fmt: skip
    for one in sorted(probe.forms, key=lambda form: form.form != probe.routing_form):
        shown.add_row(
            f"by {_FORMS.get(one.form, str(one.form))}" + (" (best)" if one.form == probe.routing_form else ""),
            f"{one.questions}",
            f"{one.accuracy:.0%}",
            f"{one.accuracy_low:.0%} to {one.accuracy_high:.0%}",
            f"{one.baseline_accuracy:.0%}",
            f"{one.valid_rate:.0%}",
            f"{one.position_bias:.2f}",
            f"{one.weight:g}",
        )
    return shown


def _sentences(probe: pb.ProbeResult) -> list[str]:
    """Say what the model does, and what is done without it."""
    trusted = [_JOBS[one.skill] for one in probe.skills if one.weight > 0 and one.skill in _JOBS]
    without = [_STANDING_IN[one.skill] for one in probe.skills if one.weight <= 0 and one.skill in _STANDING_IN]
    lines = [f"This model {_list(trusted)}."] if trusted else ["This model organizes nothing."]
    if without:
        lines.append(f"Without it: {_list(without)}.")
    return lines


def _list(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _skill(marks: pb.SkillResult) -> str:
    return enum_word(pb.ProbeSkill.Name, marks.skill)
