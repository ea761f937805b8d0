"""The console: pages for people, on the same application, authentication and package verbs as the REST API.

`shell` renders pages, and `feed` updates their live regions. A page module contains one page, or a list and the page of
one item. Large pages consist of several modules with the same prefix. All other modules are shared: forms, charts,
formats, languages.
"""
