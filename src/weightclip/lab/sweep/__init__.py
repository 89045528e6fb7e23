"""Sweeps: grids, the plan of the runs, claims on a shared store, and the executors (local, Ray, Slurm)."""
