"""The form of a policy, and the import of many with a report of the lines that were refused."""

from collections.abc import Mapping
from functools import partial
from io import StringIO
from typing import Any, Final

import orjson
from starlette.responses import Response

from shoal.access.token import TokenScope
from shoal.base.errors import InvalidInput, ShoalError
from shoal.base.request_form import fields_of
from shoal.base.text import HIDDEN, message
from shoal.plan.importer import ImportSummary, PolicyImporter
from shoal.plan.policies import Policies
from shoal.plan.policy import PolicyChange, PolicyForm, shown_options
from shoal.plan.policy_file import lines_of, read_csv, read_json_lines
from shoal.serve.console.forms import AnyQuery, ConsoleForm, form_endpoint, page_endpoint, read_form
from shoal.serve.console.shell import Notice, Shell, sentence
from shoal.serve.crawls import labels_of
from shoal.serve.endpoint import EndpointRequest, Nothing

TEXTS: Final = ("url", "frequency", "cron", "timezone", "project", "overlap", "queue", "lock_ttl", "jitter")
NUMBERS: Final = ("priority_base", "max_retry")
LISTS: Final = ("seeds", "windows")
OBJECTS: Final = ("crawl_config", "rule_set")
CREATED: Final = message("The policy was created.")
CHANGED: Final = message("The policy was changed.")


class PolicyFormPage:
    """`/policies/new` and `/policies/{policy_id}/edit`."""

    def __init__(self, shell: Shell, policies: Policies) -> None:
        self._shell = shell
        self._policies = policies

    @page_endpoint("/policies/new", "Show the form of a policy.", TokenScope.WRITE)
    async def show_new_policy(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        return self._shown(request, {"frequency": "24h", "enabled": "yes"}, {}, "")

    @page_endpoint("/policies/{policy_id}/edit", "Show the form of an existing policy.", TokenScope.WRITE)
    async def show_edit_policy(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        policy = await self._policies.get(request.path_param("policy_id"))
        form = policy.form
        values = form.plain() | {"crawl_config": shown_options(form.crawl_config)}
        return self._shown(request, _as_text(values), {}, policy.id)

    @form_endpoint("/policies/new", "Create a policy from the form.")
    async def create_policy_from_form(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form = await read_form(request.http)
        try:
            policy = await self._policies.make(PolicyForm.read(values_of(form)), audit=request.audit)
        except ShoalError as error:
            return self._refused(request, form, error, "")
        language = self._shell.view(request.http).language
        return self._shell.redirect(f"/policies/{policy.id}", Notice(language(CREATED)))

    @form_endpoint("/policies/{policy_id}/edit", "Change a policy with the form.")
    async def change_policy_from_form(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form, policy_id = await read_form(request.http), request.path_param("policy_id")
        try:
            values = values_of(form)
            for name in ("url", "frequency", "cron", "queue", "rule_set"):
                values.setdefault(name, None)
            if values["frequency"] is not None:  # an update with one of the two clears the other
                values.pop("cron")
            elif values["cron"] is not None:
                values.pop("frequency")
            if HIDDEN in form.get("crawl_config"):  # a secret was not shown, so the options stay as they are
                values.pop("crawl_config", None)
            await self._policies.change(policy_id, PolicyChange.read(values), audit=request.audit)
        except ShoalError as error:
            return self._refused(request, form, error, policy_id)
        language = self._shell.view(request.http).language
        return self._shell.redirect(f"/policies/{policy_id}", Notice(language(CHANGED)))

    def _refused(
        self, request: EndpointRequest[Any, Any], form: ConsoleForm, error: ShoalError, policy_id: str
    ) -> Response:
        if error.response.http_status != 422:
            raise error
        field = str(error.facts.get("field", "url")).partition(".")[0].partition("[")[0].partition(" ")[0]
        known = {*TEXTS, *NUMBERS, *LISTS, *OBJECTS, "labels"}
        if isinstance(error, InvalidInput) and field in LISTS:
            error = error.called(partial(_in_form, form))
        return self._shown(
            request, dict(form), {field if field in known else "url": sentence(error.message)}, policy_id
        )

    def _shown(
        self, request: EndpointRequest[Any, Any], values: Mapping[str, str], problems: dict[str, str], policy_id: str
    ) -> Response:
        defaults = {name: "" if one.default is None else one.default for name, one in fields_of(PolicyForm).items()}
        context = {"values": values, "problems": problems, "policy_id": policy_id, "defaults": defaults}
        return self._shell.page(request.http, "policy_form.html", context, 422 if problems else 200, section="policies")


class PolicyImportPage:
    """`/policies/import`."""

    def __init__(self, shell: Shell, importer: PolicyImporter) -> None:
        self._shell = shell
        self._importer = importer

    @page_endpoint("/policies/import", "Show the import form.", TokenScope.WRITE)
    async def show_import(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        return self._shown(request, {}, None)

    @form_endpoint("/policies/import", "Import policies from the form.")
    async def import_from_form(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        """Read the pasted lines: JSON Lines if they begin with a brace, else CSV with a header."""
        form = await read_form(request.http)
        text = form.get("lines")
        if not text:
            raise InvalidInput("lines", "are missing", "paste CSV or JSON Lines, or choose a file")
        reader = read_json_lines if text.startswith("{") else read_csv
        lines = lines_of(StringIO(text, newline=""))
        summary = await self._importer.take(reader(lines), skip_bad=form.get("bad") == "skip", audit=request.audit)
        return self._shown(request, dict(form), summary)

    def _shown(
        self, request: EndpointRequest[Any, Any], values: Mapping[str, str], summary: ImportSummary | None
    ) -> Response:
        status = 422 if summary is not None and summary.bad and not summary.made else 200
        context = {"values": values, "summary": summary}
        return self._shell.page(request.http, "policy_import.html", context, status, section="policies")


def values_of(form: ConsoleForm) -> dict[str, Any]:
    """Return the filled-in fields as a JSON body would have them."""
    values: dict[str, Any] = {name: form.get(name) for name in TEXTS if form.get(name)}
    for name in NUMBERS:
        if text := form.get(name):
            values[name] = int(text) if text.isascii() and text.removeprefix("-").isdecimal() else text
    for name in LISTS:
        values[name] = [line.strip() for line in form.get(name).splitlines() if line.strip()]
    for name in OBJECTS:
        if text := form.get(name):
            try:
                values[name] = orjson.loads(text)
            except orjson.JSONDecodeError:
                raise InvalidInput(name, "is not JSON", "write it as an object, such as {}") from None
    values["labels"] = labels_of([line.strip() for line in form.get("labels").splitlines() if line.strip()])
    values["enabled"] = form.get("enabled") == "yes"
    return values


def _in_form(form: ConsoleForm, field: str) -> str:
    """Return the name of an entry of a list as the form shows it: each one is a line."""
    name, _, rest = field.partition("[")
    place, _, rest = rest.partition("]")
    if not place.isdecimal():
        return field
    lines = [number for number, line in enumerate(form.get(name).splitlines(), 1) if line.strip()]
    return f"line {lines[int(place)]}{rest}"


def _as_text(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a policy as the form shows them."""
    found = {}
    for name, value in values.items():
        if name == "labels":
            found[name] = "\n".join(f"{key}={one}" for key, one in value.items())
        elif name in OBJECTS:
            found[name] = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() if value else ""
        elif isinstance(value, list):
            found[name] = "\n".join(map(str, value))
        else:
            found[name] = "" if value is None else "yes" if value is True else "" if value is False else str(value)
    return found
