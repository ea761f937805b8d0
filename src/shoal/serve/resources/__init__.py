"""The resources of the HTTP API, one module each: the structs that endpoints return, how they are built from the values
of the packages, and their examples. The OpenAPI document is generated from them."""
