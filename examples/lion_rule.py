"""An update rule of your own, at the speed of the fused engine: Lion (Chen et al., 2023).

    weightclip run input-permuted-mnist --rules examples/lion_rule.py --method lion+wc --lr 1e-5 --kappa 1

One function of one weight is all that is needed. It names what it reads as its arguments: the weight `w` and its
gradient `g`, the states it keeps for each weight (here `m`), and any settings. The module
`weightclip.lab.experiments.streaming.rules` has the whole list.
"""

from weightclip.lab.experiments.streaming.rules import Rule, sign


def update(w, g, m, lr=1e-5, beta1=0.9, beta2=0.99):
    """w <- w - lr sign(beta1 m + (1 - beta1) g), m <- beta2 m + (1 - beta2) g."""
    direction = sign(beta1 * m + (1 - beta1) * g)
    return w - lr * direction, beta2 * m + (1 - beta2) * g


LION = Rule("lion", update=update, state=("m",))
