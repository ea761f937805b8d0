"""The guarantees of the packages and their stores, checked on every driver."""
