"""A site whose titles, texts and links exist only after its scripts have run."""

import json

ANSWER = tuple[int, dict[str, str], str]
APP = """
(async () => {
  const data = await (await fetch("/data" + location.pathname)).json();
  document.title = data.title;
  const links = data.links.map(link => `<a href="${link}">${link}</a>`);
  document.getElementById("app").innerHTML = `<h1>${data.title}</h1><p>${data.text}</p>${links.join(" ")}`;
})();
"""
EMPTY = '<!doctype html><title>Loading</title><body><div id="app"></div><script src="/app.js"></script></body>'


def script_site(path: str, pages: int = 15) -> ANSWER | None:
    """Answer for a tree of pages: `/`, `/page/1` and so on, each with two children."""
    if path == "/app.js":
        return 200, {"Content-Type": "text/javascript"}, APP
    if path.startswith("/data/"):
        number = int(path.rpartition("/")[2] or 0)
        links = [f"/page/{child}" for child in (2 * number + 1, 2 * number + 2) if child < pages]
        data = {"title": f"Page {number}", "text": f"text number {number} " * 10, "links": links}
        return 200, {"Content-Type": "application/json"}, json.dumps(data)
    if path == "/" or path.startswith("/page/"):
        return 200, {"Content-Type": "text/html; charset=utf-8"}, EMPTY
    return None
