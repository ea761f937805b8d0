"""Pages: the record of one fetched URL, its links and its body, and the contracts for storing them."""
