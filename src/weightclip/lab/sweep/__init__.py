"""Sweeps: the grid of settings, the plan of the runs, locks on a shared store, workers and executors."""
