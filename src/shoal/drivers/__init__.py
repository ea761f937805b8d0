"""Redis, folders and object stores, where a contract of another package has more than one implementation."""
