"""From the bytes of a page to links and facts. Pure: no network, no store, no clock; bad bytes raise nothing."""
