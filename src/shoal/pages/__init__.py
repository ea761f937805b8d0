"""Pages: the record of one fetched URL, its links and its body, and the interfaces for storing them."""
