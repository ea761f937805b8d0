"""Redis, folders and object stores, where an interface of a different package has more than one implementation."""
