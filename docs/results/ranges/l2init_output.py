"""L2 Init on the output layer alone: the control of docs/ranges.md.

    weightclip run label-permuted-emnist --rules docs/results/ranges/l2init_output.py --method sgd+l2out --decay 0.01

The rule is L2 Init as run for the paper, with a decay of 0 wherever s = 1/sqrt(fan_in) is not that of the output layer
of the 300-150 network, 1/sqrt(150) = 0.0816; its other layers have s of 0.0577 and less.
"""

from weightclip.lab.experiments.streaming.rules import Rule


def before(w, g, s, decay):
    """The gradient with the decay of the output layer."""
    return g + (decay if s > 0.07 else 0.0) * w


def after(w, w0, s, lr, decay):
    """The pull of the output layer toward its first weights."""
    return w + lr * (decay if s > 0.07 else 0.0) * w0


L2_OUTPUT = Rule("l2out", before=before, after=after, snapshot="first update")
