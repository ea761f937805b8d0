"""Extract links, facts and data from the bytes of a page. It uses no network and no store, and a bad page never raises.

Callers pass in the timer that limits rule sets and measures hooks. Hooks run code of installed packages.
"""
