"""Adapters by which Shoal stands in a row with other products, in comparisons that are not ours."""
