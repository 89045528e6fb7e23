"""Policy collapse: PPO on MuJoCo with and without clipping (section 4.3 of the paper)."""
