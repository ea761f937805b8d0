"""The selectors of rule sets: CSS, XPath, paths into JSON-LD, and regular expressions without backtracking. Each is
validated before use and can read only the page.

Plain CSS takes linear time, but `:has()`, `:nth-…()` and XPath may take longer. Some of their constructs could take far
too much time or memory, and are rejected; the others are not used on large pages.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import turbohtml
from turbohtml import Document, Element, Node, XPath

if TYPE_CHECKING:
    from re2 import _Regexp as Regex


MOST_LOOKS: Final = 4_000_000  # element visits
MOST_TEXT: Final = 500_000_000  # characters
DEPTHS: Final = (4, 8, 16, 24, 32, 48, 64)
_MOST_DESCENTS: Final = 2  # `//` steps that multiply the cost; further steps do not, because duplicates are removed
_BUILT: Final = 8  # cost of building a text, relative to reading it

_DESCENT: Final = re.compile(r"//|descendant(?:-or-self)?\s*::")
# Matches attributes, literals and numbers: tests with them do not read an element's content.
_OWN: Final = re.compile(r"(?:\s*+(?:@[\w:-]++|''|\d++|!?=|,|\)|(?:contains|starts-with|not|and|or)\b\s*+\(?))*+\s*+")
_PLACE: Final = re.compile(r"(?:last|position)\s*+\(\s*+\)")
_PREDICATE: Final = re.compile(r"\[[^][]*\]")


class Cost(NamedTuple):
    """The cost of an expression: its `//` steps, and the predicates that read the content of elements."""

    descents: int
    looks: int
    texts: int

    def allows(self, tags: int, characters: int, depth: int) -> bool:
        """Return whether a page of this size may be searched."""
        around = depth ** min(max(1, self.descents), _MOST_DESCENTS) if self.looks else 1
        return tags * around * self.looks <= MOST_LOOKS and characters * around * self.texts <= MOST_TEXT


def looks_inside(predicate: str) -> bool:
    """Return whether a predicate reads more than the attributes and the position of an element."""
    return not _OWN.fullmatch(_PLACE.sub("1", predicate))


@lru_cache(maxsize=1_000)
def cost_of(bare: str) -> Cost:
    """Return the cost of an expression whose literals were removed."""
    path, predicates = bare, []
    while found := _PREDICATE.findall(path):
        predicates += found
        path = _PREDICATE.sub("", path)
    deep = [one for one in predicates if looks_inside(one[1:-1])]
    built = sum(one.count(",") for one in deep if "concat" in one)
    return Cost(len(_DESCENT.findall(path)), len(deep), len(deep) + _BUILT * built)


def depth_of(document: Node) -> int:
    """Return the approximate nesting depth, rounded up to one of `DEPTHS`; above the last of these, the last plus
    one."""
    for depth, chain in zip(DEPTHS, _CHAINS, strict=True):
        if document.select_one(chain) is None:
            return depth
    return DEPTHS[-1] + 1


_CHAINS: Final = [" > ".join("*" * (depth + 1)) for depth in DEPTHS]


MAX_XPATH_TAGS: Final = 5_000
MAX_XPATH_TEXT: Final = 1_000_000  # characters of a page
MAX_XPATH_DEPTH: Final = DEPTHS[-1]  # nesting of elements
LONGEST_XPATH: Final = 500
MAX_COSTLY_CSS_TAGS: Final = 20_000
MOST_COSTLY: Final = 4  # costly parts per selector
MOST_ARGUMENTS: Final = 30  # limits `concat` of whole pages
DEEPEST_PREDICATE: Final = 2
_MOST_MEMORY: Final = 1 << 22  # bytes of one compiled regular expression

FUNCTIONS: Final = frozenset({
    "boolean", "ceiling", "concat", "contains", "count", "ends-with", "false", "floor", "id", "lang", "last",
    "local-name", "lower-case", "name", "normalize-space", "not", "number", "position", "round", "starts-with",
    "string", "string-length", "substring", "substring-after", "substring-before", "sum", "translate", "true",
    "upper-case",
})  # fmt: skip
_NODE_TESTS: Final = frozenset({"node", "text", "comment", "processing-instruction"})
_FAR_AXES: Final = frozenset({"preceding", "following"})

_LITERAL: Final = re.compile(r"""'[^']*'|"[^"]*\"""")
_CALL: Final = re.compile(r"([\w.:-]+)\s*\(")
_AXIS: Final = re.compile(r"([\w-]+)\s*::")
_ABSOLUTE: Final = re.compile(r"[\[(,=<>|+*]\s*/|\b(?:or|and|div|mod)\s+/")
_SIDEWAYS: Final = re.compile(r"(?:sibling|ancestor|ancestor-or-self|parent)\s*::|\.\.")
_BELOW: Final = re.compile(r"//|descendant(?:-or-self)?\s*::")
_ID: Final = re.compile(r"(?<![\w-])id\s*\(")
_WITH_TEXT: Final = re.compile(r"''\s*+(?:!?=|[<>]=?)|(?:!?=|[<>]=?)\s*+(?:''|\d)")
_COMPARES: Final = re.compile(r"[=<>]")
_UP: Final = re.compile(r"(?:(?:ancestor(?:-or-self)?|parent)\s*+::\s*+[\w*:.-]++(?:\s*+\(\s*+\))?+|\.\.)\s*+$")
_ALL_SIBLINGS: Final = re.compile(
    r"-sibling\s*+::\s*+[\w*:.-]++(?:\s*+\(\s*+(?:'')?+\s*+\))?+\s*+(?!\[\s*\d+\s*\])", re.ASCII
)
_COSTLY: Final = re.compile(r":(?:has|nth-[\w-]+)\(", re.IGNORECASE)
_COSTLY_IN_HAS: Final = re.compile(r":(?:has|nth-[\w-]+)\(|~(?!=)|\+", re.IGNORECASE)
_ESCAPED_NAME: Final = re.compile(r"(?<!\\):[\w-]*\\")
_NOTHING: Final = turbohtml.parse("")
_OPERATORS: Final = frozenset({"and", "or", "div", "mod"})


def search_css(document: Document, selector: str) -> list[Element]:
    """Return the elements that a selector matches, without a time limit; raise `ValueError` like `check_css`."""
    try:
        return document.select(selector)
    except ValueError as error:
        raise ValueError(f"is not a CSS selector ({_reason(error)}); correct it") from None


def search_xpath(document: Document, expression: str) -> Any:
    """Return what an expression selects, without a time limit; raise `ValueError` like `check_xpath`."""
    try:
        return XPath(expression)(document)
    except (ValueError, TypeError) as error:
        raise ValueError(f"is not an XPath expression ({_reason(error)}); correct it") from None


def check_css(selector: str) -> None:
    """Validate a selector; the `ValueError` states the problem and, after a semicolon, the fix."""
    search_css(_NOTHING, selector)
    bare = _LITERAL.sub("''", selector)
    if _ESCAPED_NAME.search(bare):
        raise ValueError("has a pseudo-class written with a backslash; write it without escapes")
    if len(_COSTLY.findall(bare)) > MOST_COSTLY:
        raise ValueError(f"has more than {MOST_COSTLY} of :has() and :nth-…(); split it, or use `each`")
    if any(_COSTLY_IN_HAS.search(inner) for inner in _has_arguments(bare)):
        raise ValueError("has +, ~, :nth-…() or :has() inside :has(), which is too slow; split it, or use `each`")


def is_costly_css(selector: str) -> bool:
    """Return whether a selector takes too long on large pages."""
    return _COSTLY.search(selector) is not None


def _has_arguments(bare: str) -> Iterator[str]:
    for part in re.split(r"(?i):has\(", bare)[1:]:
        depth = 1
        for place, sign in enumerate(part):
            depth += (sign == "(") - (sign == ")")
            if depth == 0:
                yield part[:place]
                break
        else:
            yield ":has("  # nested: the next :has() begins inside this :has()


def check_xpath(expression: str) -> None:
    if len(expression) > LONGEST_XPATH:
        raise ValueError(f"has more than {LONGEST_XPATH} characters; split it, or use `each`")
    bare = _LITERAL.sub("''", expression)
    for name in _CALL.findall(bare):
        if name not in FUNCTIONS and name not in _NODE_TESTS and name not in _OPERATORS:
            fix = (
                "use the regex of the rule"
                if name in ("matches", "replace") or name.startswith("re:")
                else "leave it out"
            )
            raise ValueError(f"calls {name}(), which is not allowed; {fix}")
    for axis in _AXIS.findall(bare):
        if axis in _FAR_AXES:
            raise ValueError(
                f"uses the axis {axis}::, which is too slow; use {axis}-sibling::*[1] or a path from above"
            )
    if bare.count(",") > MOST_ARGUMENTS:
        raise ValueError(f"has more than {MOST_ARGUMENTS} arguments; split it")
    if "$" in bare:
        raise ValueError("uses a variable, which is not supported; write the value itself")
    _check_predicates(bare)
    if _looks_from_above(bare):
        raise ValueError(
            "searches below an ancestor, which is too slow; compare attributes of the ancestor, or use `each`"
        )
    search_xpath(_NOTHING, expression)


def _check_predicates(bare: str) -> None:
    for predicate in _predicates(bare):
        nested = _predicates(predicate)
        if any("[" in inner for inner in nested):
            raise ValueError(f"nests [ ] more than {DEEPEST_PREDICATE} levels deep; split it, or use `each`")
        if _ABSOLUTE.search(f"[{predicate}"):
            raise ValueError("searches the whole page inside [ ]; start that path with a dot: .//")
        if _SIDEWAYS.search(predicate):
            raise ValueError("goes up or sideways inside [ ], which is too slow; do it outside, or use `each`")
        if _ID.search(predicate):
            raise ValueError("calls id() inside [ ], which is too slow; compare @id")
        below = len(_BELOW.findall(predicate))
        if below > 1:
            raise ValueError("searches below an element twice inside one [ ]; write two of them: [.//a][.//b]")
        if below and _COMPARES.search(_WITH_TEXT.sub("", predicate)):
            raise ValueError("compares the result of [.// ] with other elements; compare it with text or a number")
        if below and any(map(looks_inside, nested)):
            raise ValueError("looks at more than attributes in a [ ] inside [.// ], which is too slow; use `each`")
    if _ALL_SIBLINGS.search(bare):
        raise ValueError("selects all siblings, which is too slow; select one, such as following-sibling::p[1]")


def _looks_from_above(bare: str) -> bool:
    """Return whether a step up has a predicate that reads content: the predicate would run again for each element
    below."""
    before, start = "", 0
    for predicate in _predicates(bare):
        at = bare.index(f"[{predicate}]", start)
        before += bare[start:at]
        start = at + len(predicate) + 2
        if _UP.search(before) and looks_inside(predicate):
            return True
    return False


def _predicates(bare: str) -> list[str]:
    """Return the contents of the outermost brackets."""
    found = []
    depth = start = 0
    for place, sign in enumerate(bare):
        if sign == "[":
            start = place + 1 if depth == 0 else start
            depth += 1
        elif sign == "]":
            depth -= 1
            if depth == 0:
                found.append(bare[start:place])
    return found


def find_by_xpath(expression: str, context: Node) -> Sequence[Any]:
    """Evaluate a validated expression; empty on a type error, such as a path that starts from a number."""
    try:
        found = _compiled(expression)(context)
    except (ValueError, TypeError):
        return ()
    return found if isinstance(found, list) else [found]


_compiled: Final = lru_cache(maxsize=1_000)(XPath)


def check_json_ld(path: str) -> None:
    if not all(part.strip() for part in path.split(".")):
        raise ValueError("has an empty step; write a type and keys separated by dots, such as Product.offers.price")


def find_json_ld(blocks: Sequence[Any], path: str) -> Iterator[Any]:
    """Yield the scalar values at the path in all blocks: first objects of the named type (`*` is any type), then the
    value of each key in the path. Lists are flattened."""
    kind, *keys = (part.strip() for part in path.split("."))
    found: list[Any] = [one for block in blocks for one in _objects(block) if kind == "*" or kind in _kinds(one)]
    for key in keys:
        found = [value for one in found if isinstance(one, dict) and key in one for value in _flat(one[key])]
    for value in found:
        if isinstance(value, dict) and "@value" in value:
            value = value["@value"]
        if value is not None and not isinstance(value, dict | list):
            yield value


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(reversed(value))
        elif isinstance(value, dict):
            yield value
            waiting.extend(reversed([part for part in value.values() if isinstance(part, dict | list)]))


def _kinds(one: dict[str, Any]) -> list[str]:
    """Return the types of an object, without their vocabulary prefix."""
    return [kind.rpartition("/")[2].rpartition("#")[2] for kind in _flat(one.get("@type")) if isinstance(kind, str)]


def _flat(value: Any) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    return [part for one in value for part in (one if isinstance(one, list) else [one])]


def check_regex(pattern: str) -> None:
    from re2 import error

    try:
        regex(pattern)
    except error as problem:
        raise ValueError(
            f"is not a regular expression that RE2 supports ({_reason(problem)}); "
            "remove look-around and back-references, and keep repetitions below 1000"
        ) from None


@lru_cache(maxsize=1_000)
def regex(pattern: str) -> "Regex":
    """Compile a regular expression with RE2, whose run time is linear in the text."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MOST_MEMORY
    return re2.compile(pattern, options)


def count_tags(document: Node) -> int:
    return sum(1 for _ in document.iter_elements())


def without_literals(expression: str) -> str:
    return _LITERAL.sub("''", expression)


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    return text.rpartition('": ')[2].removeprefix("xpath: ")[:200]
