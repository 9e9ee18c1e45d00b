"""Generators of pages: the settings, the metrics, and the Grafana dashboard.

Tests compare what they print with what is in the tree.
"""
