"""A method, a benchmark and a tracker that askew finds once this package is installed."""
