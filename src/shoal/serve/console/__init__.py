"""The console: pages for people, on the same application, authentication and package verbs as the REST API.

`shell` renders pages and `feed` updates their live regions. A module has one page, or a list and the page of one item;
large pages have further modules with the same prefix. The others are shared: forms, charts, formats, languages.
"""
