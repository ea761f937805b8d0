"""Pages: the record of one fetched URL, and where it is kept."""
