"""Extract links and facts from the bytes of a page. Pure: no network, store or clock; bad input never raises."""
