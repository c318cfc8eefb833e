"""Tiny random-weight models of many architectures; see tools/make_tiny_models.py."""
