"""Large replay ratios: DQN and Rainbow on Atari and MinAtar, with and without clipping (section 4.4 of the paper)."""
