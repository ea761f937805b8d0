"""Fetch one page through egress, decode it and extract its facts. One attempt only: the frontier retries."""
