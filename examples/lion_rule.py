"""A custom update rule for the fused engine: Lion (Chen et al., 2023).

    weightclip run input-permuted-mnist --rules examples/lion_rule.py --method lion+wc --lr 1e-5 --kappa 1

A rule is a function that updates a single weight. Its arguments are the weight `w`, its gradient `g`, the optimizer
state of the weight (here `m`), and any settings. `weightclip.lab.experiments.streaming.rules` lists all arguments.
"""

from weightclip.lab.experiments.streaming.rules import Rule, sign


def update(w, g, m, lr=1e-5, beta1=0.9, beta2=0.99):
    """w <- w - lr sign(beta1 m + (1 - beta1) g), m <- beta2 m + (1 - beta2) g."""
    direction = sign(beta1 * m + (1 - beta1) * g)
    return w - lr * direction, beta2 * m + (1 - beta2) * g


LION = Rule("lion", update=update, state=("m",))
