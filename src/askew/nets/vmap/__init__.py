"""Layers of many networks at once, each with weights of its own."""
