"""Policies: what is to be crawled again and again, when, and how much it matters. Makes jobs; runs none."""
