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


LATE_BY = ("timer", "fetch", "view", "scroll", "hydration")
LATE_MS = (0, 100, 300, 600, 1500)
ENTRIES = 60
_LATE = """<!doctype html><title>{how} {ms}</title><body><div id="list"></div><p id="end">end</p><script type="module">
const add = (count) => {{
  const entry = "<div class='entry' style='height:100px'>entry</div>";
  for (let made = 0; made < count; made++) list.insertAdjacentHTML("beforeend", entry);
}};
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
{script}
</script></body>"""
_SCRIPTS = {
    "timer": "setTimeout(() => add(ENTRIES), MS);",
    "fetch": "fetch('/slow/MS').then(() => add(ENTRIES));",
    "view": """new IntersectionObserver(async ([seen], watch) => {
          if (!seen.isIntersecting) return;
          watch.disconnect();
          await fetch("/slow/MS");
          add(ENTRIES);
        }).observe(end);""",
    "scroll": """add(10);
        let timer = 0;
        addEventListener("scroll", () => {
          clearTimeout(timer);
          timer = setTimeout(async () => {
            if (list.children.length >= ENTRIES) return;
            await fetch("/slow/0");
            add(10);
          }, MS);
        });""",
    "hydration": """addEventListener("load", () => requestIdleCallback(async () => {
          await wait(MS);
          (await import("/hydrate.js")).default(add, ENTRIES);
        }));""",
}


def late_site(path: str) -> ANSWER | None:
    """Answer for pages whose entries come late: `/late/timer/300`. The answer to `/slow/300` should take as long."""
    match path.split("/"):
        case ["", "late", how, ms]:
            script = _SCRIPTS[how].replace("MS", ms).replace("ENTRIES", str(ENTRIES))
            page = _LATE.format(how=how, ms=ms, script=script)
            return 200, {"Content-Type": "text/html; charset=utf-8"}, page
        case ["", "hydrate.js"]:
            script = "export default (add, count) => { for (let made = 0; made < count; made += 20) add(20); }"
            return 200, {"Content-Type": "text/javascript"}, script
        case ["", "slow", _]:
            return 200, {"Content-Type": "application/json"}, "{}"
        case _:
            return None
