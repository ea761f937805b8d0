"""The form for a policy, and the import of policies with a report of rejected lines."""

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any, Final, get_origin

import orjson
from starlette.responses import Response

from shoal.access.token import TokenScope
from shoal.base.errors import InvalidInput, ShoalError
from shoal.base.request_form import fields_of
from shoal.base.text import HIDDEN, message, shorten
from shoal.crawl.crawl import Crawl, CrawlConfig, shown_config
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.plan.importer import ImportSummary, PolicyImporter
from shoal.plan.policies import Policies
from shoal.plan.policy import PolicyChange, PolicyForm, shown_options
from shoal.plan.policy_file import lines_of, read_csv, read_json_lines
from shoal.serve.console.forms import (
    AnyQuery,
    ConsoleForm,
    as_text,
    form_endpoint,
    number_or_text,
    page_endpoint,
    read_form,
)
from shoal.serve.console.shell import Notice, Shell, sentence
from shoal.serve.crawls import labels_of
from shoal.serve.endpoint import EndpointRequest, Nothing

TEXTS: Final = ("url", "frequency", "cron", "timezone", "project", "overlap", "queue", "lock_ttl", "jitter")
NUMBERS: Final = ("priority_base", "max_retry")
LISTS: Final = ("seeds", "windows")
OF_ONE_RUN: Final = frozenset(
    {"recrawl_of", "baseline", "commit", "more_seeds"}
)  # options that are meaningful for one crawl only
OPTION_LISTS: Final = frozenset(name for name, one in fields_of(CrawlConfig).items() if get_origin(one.kind) is list)
EVERY: Final = "24h"  # the frequency of a new policy if the form has neither a frequency nor a cron expression
EITHER: Final = (
    ("url", "seeds", message("Fill in either the page to fetch, or the start URLs of a site.")),
    ("frequency", "cron", message("Fill in either “Every”, or the cron expression.")),
)
CREATED: Final = message("The policy was created.")
CHANGED: Final = message("The policy was changed.")


class PolicyFormPage:
    """`/policies/new` and `/policies/{policy_id}/edit`."""

    def __init__(self, shell: Shell, policies: Policies, crawls: Crawls) -> None:
        self._shell = shell
        self._policies = policies
        self._crawls = crawls

    @page_endpoint("/policies/new", "Show the form of a policy.", TokenScope.WRITE)
    async def show_new_policy(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        """Show the form, empty or with the seeds and options of the crawl in `crawl`."""
        values, secrets = {"enabled": "yes"}, list[str]()
        if copied := request.http.query_params.get("crawl"):
            known, secrets = repeated((await self._crawls.get(copied)).crawl)
            values |= _as_text(known)
        return self._shown(request, values, {}, "", secrets)

    @page_endpoint("/policies/{policy_id}/edit", "Show the form of an existing policy.", TokenScope.WRITE)
    async def show_edit_policy(self, request: EndpointRequest[Nothing, AnyQuery]) -> Response:
        policy = await self._policies.get(request.path_param("policy_id"))
        form = policy.form
        values = form.plain() | {"crawl_config": shown_options(form.crawl_config)}
        return self._shown(request, _as_text(values), {}, policy.id)

    @form_endpoint("/policies/new", "Create a policy from the form.")
    async def create_policy_from_form(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form = await read_form(request.http)
        if problems := self._problems(request, form, needs_schedule=False):
            return self._shown(request, dict(form), problems, "")
        try:
            values = values_of(form)
            if "cron" not in values:
                values.setdefault("frequency", EVERY)
            policy = await self._policies.make(PolicyForm.read(values), audit=request.audit)
        except ShoalError as error:
            return self._refused(request, form, error, "")
        language = self._shell.view(request.http).language
        return self._shell.redirect(f"/policies/{policy.id}", Notice(language(CREATED)))

    @form_endpoint("/policies/{policy_id}/edit", "Change a policy with the form.")
    async def change_policy_from_form(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        form, policy_id = await read_form(request.http), request.path_param("policy_id")
        if problems := self._problems(request, form, needs_schedule=True):
            return self._shown(request, dict(form), problems, policy_id)
        try:
            values = values_of(form)
            for name in ("url", "frequency", "cron", "queue", "rule_set"):
                values.setdefault(name, None)
            if values["frequency"] is not None:  # setting the frequency clears cron, and vice versa
                values.pop("cron")
            elif values["cron"] is not None:
                values.pop("frequency")
            if HIDDEN in form.get("crawl_config"):  # hidden secrets cannot be sent back, so the options are not changed
                values.pop("crawl_config", None)
            await self._policies.change(policy_id, PolicyChange.read(values), audit=request.audit)
        except ShoalError as error:
            return self._refused(request, form, error, policy_id)
        language = self._shell.view(request.http).language
        return self._shell.redirect(f"/policies/{policy_id}", Notice(language(CHANGED)))

    def _problems(
        self, request: EndpointRequest[Any, Any], form: ConsoleForm, *, needs_schedule: bool
    ) -> dict[str, str]:
        """Return the problems of fields of which exactly one must be filled in."""
        language, problems = self._shell.view(request.http).language, {}
        for one, other, words in EITHER:
            given = bool(form.get(one)) + bool(form.get(other))
            if given == 2 or (given == 0 and (needs_schedule or one == "url")):
                problems[one] = language(words)
        return problems

    def _refused(
        self, request: EndpointRequest[Any, Any], form: ConsoleForm, error: ShoalError, policy_id: str
    ) -> Response:
        if error.response.http_status != 422:
            raise error
        field = str(error.facts.get("field", "url")).partition(".")[0].partition("[")[0].partition(" ")[0]
        known = {*TEXTS, *NUMBERS, *LISTS, "crawl_config", "rule_set", "labels"}
        if isinstance(error, InvalidInput) and field in known:  # the problem is shown below the field
            error = error.called(form.line_of if field in LISTS else nameless)
        return self._shown(
            request, dict(form), {field if field in known else "url": sentence(error.message.strip())}, policy_id
        )

    def _shown(
        self,
        request: EndpointRequest[Any, Any],
        values: Mapping[str, str],
        problems: dict[str, str],
        policy_id: str,
        secrets: Sequence[str] = (),
    ) -> Response:
        defaults = {name: "" if one.default is None else one.default for name, one in fields_of(PolicyForm).items()}
        context = {"values": values, "problems": problems, "policy_id": policy_id, "defaults": defaults}
        context |= {"secrets": secrets, "every": EVERY}
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
        """Read the pasted lines: as JSON Lines if they begin with a brace, otherwise as CSV with a header."""
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


def nameless(field: str) -> str:
    """Return the part of a field's name that its label does not contain: the name of an option, or a place in a list
    or an object."""
    _, dot, option = field.partition(".")
    return option if dot else field.removeprefix(field.partition("[")[0])


def values_of(form: ConsoleForm) -> dict[str, Any]:
    """Return the filled-in fields as in a JSON request body."""
    values: dict[str, Any] = {name: form.get(name) for name in TEXTS if form.get(name)}
    for name in NUMBERS:
        if text := form.get(name):
            values[name] = number_or_text(text)
    values |= {name: form.lines(name) for name in LISTS}
    if text := form.get("rule_set"):
        values["rule_set"] = _object("rule_set", text)
    if text := form.get("crawl_config"):
        values["crawl_config"] = _object("crawl_config", text) if text.startswith("{") else read_options(text)
    values["labels"] = labels_of(form.lines("labels"))
    values["enabled"] = form.get("enabled") == "yes"
    return values


def _object(name: str, text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise InvalidInput(name, "is not JSON", "write it as an object, such as {}") from None


def repeated(crawl: Crawl) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a policy that repeats a crawl, and the names of the options that are left out because they
    contain secrets."""
    config = crawl.config
    # its default depth limit depends on the scope
    plain = CrawlConfig.read({"seeds": config.seeds, "scope": config.scope}).plain()
    plain["scope"] = fields_of(CrawlConfig)["scope"].default
    chosen = {
        name: value for name, value in shown_config(config).items() if name not in OF_ONE_RUN and value != plain[name]
    }
    secrets = [name for name, value in chosen.items() if value != config.plain()[name]]
    fields = {"seeds": config.seeds, "project": crawl.project, "labels": config.labels, "priority_base": crawl.priority}
    return fields | {"crawl_config": {name: chosen[name] for name in chosen if name not in secrets}}, secrets


def written_options(options: Mapping[str, Any]) -> str:
    """Return options as lines of `name=value`. A header is written as `headers.Name=value`, a list as one line per
    value. Text that could be read as a different type is quoted, and deeper values are written as JSON."""
    lines = []
    for name, value in options.items():
        if isinstance(value, dict) and name == "headers":
            lines += [f"{name}.{key}={one}" for key, one in value.items()]
        elif isinstance(value, list) and value:
            lines += [f"{name}={_written(one)}" for one in value]
        else:
            lines.append(f"{name}={_written(value)}")
    return "\n".join(lines)


def _written(value: Any) -> str:
    is_plain = isinstance(value, str) and value == value.strip() and value.isprintable() and _value(value) == value
    return value if is_plain else orjson.dumps(value).decode()


def read_options(text: str) -> dict[str, Any]:
    """Parse the lines that `written_options` writes."""
    found: dict[str, Any] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, sign, written = (part.strip() for part in line.partition("="))
        if not sign or not name:
            raise InvalidInput("crawl_config", f"has the line {shorten(line)!r}", "write each option as name=value")
        value, (name, dot, key) = _value(written), name.partition(".")
        if dot:
            found.setdefault(name, {})[key] = written
        elif name in OPTION_LISTS:
            found.setdefault(name, []).extend(value if isinstance(value, list) else [value])
        elif name in found:
            raise InvalidInput("crawl_config", f"has {shorten(name)} twice", "write it once")
        else:
            found[name] = value
    return found


def _value(text: str) -> Any:
    """Parse the text of a value: a number, true, false or null, or JSON. Any other text is returned unchanged."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _as_text(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of a policy as texts for the form."""
    found = {}
    for name, value in values.items():
        if name == "crawl_config":
            found[name] = written_options(value)
        elif name == "rule_set":
            found[name] = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() if value else ""
        else:
            found[name] = as_text(value)
    return found
