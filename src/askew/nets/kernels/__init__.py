"""Kernels of single networks, and what chooses between them and torch; those of lanes are in
`askew.nets.lanes`."""
