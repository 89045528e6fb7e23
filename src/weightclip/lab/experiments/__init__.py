"""The paper's four experiments."""
