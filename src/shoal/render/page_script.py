"""The functions that Shoal runs in a page. They are fixed; only their argument comes from a caller, as JSON."""

from typing import Final

HTML: Final = """(most) => {
  const type = document.doctype;
  const head = type ? `<!DOCTYPE ${type.name}>` : "";
  const html = head + (document.documentElement ? document.documentElement.outerHTML : "");
  return {url: document.URL, html: html.length > most ? null : html};
}"""

WAIT_FOR: Final = """(selector) => new Promise((done) => {
  const look = () => document.querySelector(selector) !== null;
  if (look()) return done(true);
  const watch = new MutationObserver(() => { if (look()) { watch.disconnect(); done(true); } });
  watch.observe(document, {subtree: true, childList: true, attributes: true});
})"""

SCROLL: Final = """() => {
  const page = document.scrollingElement || document.documentElement;
  const grew = page.scrollHeight !== window.__shoalHeight;
  window.__shoalHeight = page.scrollHeight;
  if (grew) window.scrollTo(0, page.scrollHeight);
  return grew;
}"""

CLICK: Final = """(selector) => {
  const element = document.querySelector(selector);
  if (!element || element.disabled || element.getClientRects().length === 0) return false;
  element.scrollIntoView();
  element.click();
  return true;
}"""
