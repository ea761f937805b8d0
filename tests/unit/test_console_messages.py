"""Every text of the console is in each catalogue, and no catalogue has a text that the console does not use."""

import ast
import re
import sys
from pathlib import Path

import pytest

import shoal
from shoal.audit.codes import CODES, NOT_CHECKED
from shoal.serve import console
from shoal.serve.console.format import ENGLISH, languages, preferred

PACKAGE = Path(console.__file__).parent
TEMPLATES = PACKAGE.parent / "templates" / "console"
CALLS = {"message", "language", "plural"}
IN_TEMPLATE = re.compile(
    r"""\bt\((["'])(.+?)\1\s*[,)]|\bplural\((["'])(.+?)\3,\s*(["'])(.+?)\5,|: (["'])([A-Z].+?)\7[,}]"""
)
PLACES = re.compile(r"{\w+}")


def marked(path: Path, calls: set[str]) -> set[str]:
    """Return the texts that a module gives to one of these functions."""
    text = path.read_text()
    nodes = ast.walk(ast.parse(text)) if "message(" in text or calls != {"message"} else []
    found = set()
    for node in nodes:
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in calls:
                found |= {
                    one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)
                }
    return found


def texts() -> set[str]:
    """Return the texts that the code and the templates show, and what finding codes say."""
    found = {*NOT_CHECKED.values()}.union(*((code.title, code.fix) for code in CODES.values()))
    for path in Path(shoal.__file__).parent.rglob("*.py"):
        found |= marked(path, CALLS if path.parent == PACKAGE else {"message"})
    for path in TEMPLATES.rglob("*.html"):
        for match in IN_TEMPLATE.finditer(path.read_text()):
            found |= {text for text in (match[2], match[4], match[6], match[8]) if text}
    return found


@pytest.mark.parametrize("code", sorted(set(languages()) - {"en"}))
def test_a_catalogue_has_every_text_and_no_other(code: str) -> None:
    known = set(languages()[code].texts)
    assert sorted(texts() - known) == []
    assert sorted(known - texts()) == []


@pytest.mark.parametrize("code", sorted(set(languages()) - {"en"}))
def test_every_finding_code_is_translated(code: str) -> None:
    language = languages()[code]
    english = {one.code for one in CODES.values() if language(one.title) == one.title or language(one.fix) == one.fix}
    assert english == set()


@pytest.mark.parametrize("code", sorted(set(languages()) - {"en"}))
def test_a_translation_has_the_places_of_its_text(code: str) -> None:
    for text, translated in languages()[code].texts.items():
        assert sorted(PLACES.findall(text)) == sorted(PLACES.findall(translated)), text


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("", "en"),
        ("fr", "fr"),
        ("fr-CA,en;q=0.5", "fr"),
        ("de,fr;q=0.8,en;q=0.9", "en"),
        ("xx,;q=,fr;q=abc", "fr"),
        ("*", "en"),
    ],
)
def test_the_language_is_the_first_that_we_have(header: str, code: str) -> None:
    assert preferred(header).code == code


def test_a_count_takes_the_form_of_its_language() -> None:
    french = languages()["fr"]
    assert ENGLISH.plural("{count} day", "{count} days", 0) == "0 days"
    assert french.plural("{count} day", "{count} days", 0) == "0 jour"
    assert french.number(1234567.8, 1) == "1\u202f234\u202f567,8"


if __name__ == "__main__":  # print what a catalogue lacks
    for text in sorted(texts() - set(languages()["fr"].texts)):
        sys.stdout.write(f'"{text}" = ""\n')
