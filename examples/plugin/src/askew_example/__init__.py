"""A method and a benchmark that askew finds once this package is installed."""
