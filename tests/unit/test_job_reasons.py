"""The reasons of jobs and crawls: every one that the code can store has words."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import shoal
from shoal.base.errors import RESPONSES, SchemaMismatch
from shoal.crawl import states as crawl_states
from shoal.crawl.crawl import BUDGETS
from shoal.crawl.frontier.values import Control
from shoal.crawl.states import CrawlState
from shoal.queue.reasons import REASONS
from shoal.serve.console.format import languages
from shoal.web.error_codes import PAGE_ERRORS

SOURCE = Path(shoal.__file__).parent
# The functions and messages that take a reason, or pass it on.
TAKERS = {
    *("Move", "finish", "release", "put_off", "take_back", "cancel", "give_up", "give_back", "bury"),
    *("lose", "cancel_in", "cancel_waiting", "PutOff", "NotRendered", "HandBack", "Leave", "hand_back", "leave"),
    *("_leave", "_release", "release_bot", "pause", "ask_to_pause", "stop", "ask_to_stop", "complete", "fail"),
}
CODE = re.compile(r"[a-z]+(?:_[a-z]+)*")
IN_SQL = re.compile(r"state_reason = '(\w+)'")
NOT_STORED = {"worn"}  # a page child that leaves for this reason finishes its jobs first
COMPUTED = {
    "turn.control.value": {control.value for control in Control if control is not Control.GO},
    "budget": BUDGETS,
    "spent": BUDGETS,
    "state.value": {state.value for state in CrawlState},
    "now.to.value": {state.value for state in CrawlState},
    "QUIET[crawl.state].value": {state.value for state in CrawlState},
    "(end.to if end else crawl.state).value": {state.value for state in CrawlState},
    "error.code": {kind.code for kind in RESPONSES},
    "failure.code": {kind.code for kind in RESPONSES},
    "SchemaMismatch.code": {SchemaMismatch.code},
    "result.error_code": set(PAGE_ERRORS),
}
"""What the expressions that compute a reason can give."""


def reasons_in(tree: ast.Module, constants: dict[str, str]) -> Iterator[str]:
    """Yield the reasons in a module, and the expressions that compute one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in TAKERS:
                for argument in node.args:
                    yield from given(argument, constants)
        elif isinstance(node, ast.Assign) and re.search(r"\b_?(reason|hand_back|pausing)\b", ast.unparse(node.targets)):
            yield from given(node.value, constants)
        elif isinstance(node, ast.arguments):
            names = [one.arg for one in [*node.posonlyargs, *node.args][-len(node.defaults) :]] if node.defaults else []
            for name, default in zip(names, node.defaults, strict=True):
                if name == "reason":
                    yield from given(default, constants)


def given(node: ast.expr, constants: dict[str, str]) -> Iterator[str]:
    """Yield the reasons that an expression can be."""
    match node:
        case ast.Constant(value=str(text)) if CODE.fullmatch(text):
            yield text
        case ast.Name(id=name) if name in constants or name in COMPUTED:
            yield constants.get(name, name)
        case ast.IfExp(body=body, orelse=other):
            yield from given(body, constants)
            yield from given(other, constants)
        case ast.BoolOp(values=values) | ast.Tuple(elts=values):
            for value in values:
                yield from given(value, constants)
        case ast.Attribute(attr="value" | "code" | "error_code"):
            yield ast.unparse(node)


def constants_in(tree: ast.Module) -> dict[str, str]:
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name) and CODE.fullmatch(node.value.value)
    }


def stored() -> set[str]:
    """Return every reason that the code can store with a job or a crawl."""
    # What `explain` answers is not stored.
    trees = [
        ast.parse(path.read_text()) for path in SOURCE.rglob("*.py") if path.name not in ("explain.py", "job_admin.py")
    ]
    constants = {name: value for tree in trees for name, value in constants_in(tree).items() if name.isupper()}
    found = {reason for tree in trees for reason in reasons_in(tree, constants)}
    found |= {reason for path in SOURCE.rglob("*.sql") for reason in IN_SQL.findall(path.read_text())}
    computed = {reason for reason in found if reason in COMPUTED or not CODE.fullmatch(reason)}
    assert computed == COMPUTED.keys()
    return (found - computed - NOT_STORED).union(*COMPUTED.values())


def test_every_reason_that_the_code_can_store_has_words() -> None:
    reasons = stored()
    assert {"quota", "retry", "token_revoked", "replaced", "max_pages", "browser_restarted", "no_slot"} <= reasons
    assert sorted(reasons - crawl_states.REASONS.keys()) == []


def test_a_job_has_words_for_the_reasons_of_its_crawl_and_its_page() -> None:
    only_of_crawls = crawl_states.REASONS.keys() - REASONS.keys()
    assert only_of_crawls == {
        "drained_partly",
        "no_seed_gave_a_page",
        "process_gone",
        "unattended",
        "cleanup",
        "loading",
    }
    assert REASONS.keys() >= PAGE_ERRORS.keys() | BUDGETS | {kind.code for kind in RESPONSES}


def test_the_words_are_words_in_every_language() -> None:
    for language in languages().values():
        for reason, words in crawl_states.REASONS.items():
            assert words == reason == "interrupted" or "_" not in language(words) != reason, reason
