"""The console: pages for people, on the same application, authentication and package verbs as the REST API.

`shell` renders pages, `feed` updates their live regions, and each page has a module of its own.
"""
