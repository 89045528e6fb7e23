"""An experiment in a package of its own: linear regression on a target that drifts (docs/howto/extending.md)."""
