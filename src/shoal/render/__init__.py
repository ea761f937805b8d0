"""Rendering: pages that need a browser, on a pool of Chromium processes or on a render service."""
