"""Drivers that answer the rooms' store contracts. They decide nothing."""
