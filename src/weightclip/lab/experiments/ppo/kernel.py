"""The compiled code of the fused backend: mean actions, normalization, and the update with hand-derived gradients.

`fused.py` passes this file to numba, which caches the compiled code under the hash of this text. `learn` makes all
updates of one learner.

`theta` [P] holds the parameters in the order of `ActorCritic.parameters()`: the log-std [a], then weight [out, in] and
bias [out] of each layer of the value network, then those of the policy. The gradient, Adam's moments and the clipping
limits have the same layout.

With n steps in a minibatch, advantages A_i, ratios r_i = exp(log p_i - log p_i,old) and a clipping coefficient c, the
loss of the policy is mean_i max(-A_i r_i, -A_i clip(r_i, 1 - c, 1 + c)), so that

    dL/d(log p_i) = -A_i r_i / n where the first term is the maximum, else 0.

For the Gaussian policy with mean mu, log-std s and e = (action - mu) exp(-s), log p = sum_j -e_j^2 / 2 - s_j + const:

    d(log p)/d(mu_j) = e_j exp(-s_j),    d(log p)/d(s_j) = e_j^2 - 1.

For a layer z = W h + b with h = tanh(z of the layer before) and d = dL/dz [n, out]:

    dL/dW = d^T h,    dL/db = sum_i d_i,    dL/dz of the layer before = (d W) (1 - h^2).
"""

# ruff: noqa: D103
# mypy: ignore-errors

import math

import numpy as np
from numba import njit

F = np.float32
# Without nnan and ninf, so that divergence is visible.
FLAGS = {"reassoc", "contract", "arcp", "nsz", "afn"}
# Inlining puts everything into the cached function; otherwise a process that compiles and one that reads the cache
# could round differently.
OPTIONS = {
    "fastmath": FLAGS,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "forceinline": True,
}
HALF_LOG_2PI = F(0.5 * math.log(2 * math.pi))
TANH_LIMIT = F(7.90531110763549805)


@njit(**OPTIONS)
def tanh(x):
    """tanh in float32, within 4e-7: the rational function of Eigen (Eigen/src/Core/MathFunctionsImpl.h)."""
    x = TANH_LIMIT if x > TANH_LIMIT else -TANH_LIMIT if x < -TANH_LIMIT else x
    y = x * x
    p = F(-2.76076847742355e-16)
    p = p * y + F(2.00018790482477e-13)
    p = p * y + F(-8.60467152213735e-11)
    p = p * y + F(5.12229709037114e-08)
    p = p * y + F(1.48572235717979e-05)
    p = p * y + F(6.37261928875436e-04)
    p = p * y + F(4.89352455891786e-03)
    q = F(1.19825839466702e-06)
    q = q * y + F(1.18534705686654e-04)
    q = q * y + F(2.26843463243900e-03)
    q = q * y + F(4.89352518554385e-03)
    return x * p / q


@njit(**OPTIONS)
def forward(theta, first, h):
    """Fill h[l + 1] [n, out] from h[l] [n, in] for each layer; the parameters start at theta[first]."""
    layers = len(h) - 1
    for l in range(layers):
        n, inputs = h[l].shape
        outputs = h[l + 1].shape[1]
        middle = first + outputs * inputs
        weight, bias = theta[first:middle].reshape(outputs, inputs), theta[middle : middle + outputs]
        z = h[l + 1]
        np.dot(h[l], weight.T, z)
        for i in range(n):
            row = z[i]
            if l < layers - 1:
                for j in range(outputs):
                    row[j] = tanh(row[j] + bias[j])
            else:
                for j in range(outputs):
                    row[j] += bias[j]
        first = middle + outputs


@njit(**OPTIONS)
def backward(theta, gradient, end, h, delta):
    """Fill the gradient of the layers whose parameters end at theta[end], from delta[-1] = dL/d(output) [n, out]."""
    for l in range(len(h) - 2, -1, -1):
        n, inputs = h[l].shape
        outputs = h[l + 1].shape[1]
        d, middle = delta[l + 1], end - outputs
        first = middle - outputs * inputs
        np.dot(d.T, h[l], gradient[first:middle].reshape(outputs, inputs))
        bias = gradient[middle:end]
        bias[:] = F(0)
        for i in range(n):
            row = d[i]
            for j in range(outputs):
                bias[j] += row[j]
        if l > 0:
            below, units = delta[l], h[l]
            np.dot(d, theta[first:middle].reshape(outputs, inputs), below)
            for i in range(n):
                row, own = below[i], units[i]
                for j in range(inputs):
                    row[j] *= F(1) - own[j] * own[j]
        end = first


@njit(**OPTIONS)
def normalize(x):
    """(x - mean) / (std + 1e-8) in place; the variance has n - 1 degrees of freedom."""
    n = x.shape[0]
    mean = 0.0
    for i in range(n):
        mean += x[i]
    mean /= n
    square = 0.0
    for i in range(n):
        square += (x[i] - mean) ** 2
    deviation = math.sqrt(square / (n - 1)) + 1e-8
    for i in range(n):
        x[i] = F((x[i] - mean) / deviation)


@njit(**OPTIONS)
def policy_loss(means, log_std, actions, old, advantages, coef, delta, gradient, log_ratio):
    """The clipped loss [n] -> its mean, and the fraction of ratios outside 1 +- coef.

    Fills delta = dL/d(means) [n, a], the gradient of the log-std [a] and log_ratio [n].
    """
    n, size = means.shape
    low, high, width = F(1.0 - coef), F(1.0 + coef), F(coef)
    total, clipped = 0.0, 0
    inverse = np.empty(size, F)
    for j in range(size):
        inverse[j] = math.exp(-log_std[j])
        gradient[j] = F(0)
    for i in range(n):
        log_p = 0.0
        for j in range(size):
            e = (actions[i, j] - means[i, j]) * inverse[j]
            log_p += F(-0.5) * e * e - log_std[j] - HALF_LOG_2PI
        log_ratio[i] = F(log_p - old[i])
        ratio = F(math.exp(log_ratio[i]))
        clipped_ratio = low if ratio < low else high if ratio > high else ratio
        loss, clipped_loss = -advantages[i] * ratio, -advantages[i] * clipped_ratio
        clipped += abs(ratio - F(1)) > width
        d = loss / F(n)
        if clipped_loss > loss:
            total += clipped_loss
            d = F(0)
        else:
            total += loss
        for j in range(size):
            e = (actions[i, j] - means[i, j]) * inverse[j]
            delta[i, j] = d * e * inverse[j]
            gradient[j] += d * (e * e - F(1))
    return total / n, clipped / n


@njit(**OPTIONS)
def value_loss(values, returns, old, coef, clip, weight, delta):
    """Half the squared error [n] -> its mean; fills delta = weight dL/d(values) [n, 1].

    With `clip`, the error is the larger one of v and v_old + clip(v - v_old, -c, c).
    """
    n = values.shape[0]
    total = 0.0
    for i in range(n):
        v = values[i, 0]
        error = v - returns[i]
        square, slope = error * error, error
        if clip:
            change = v - old[i]
            clipped_change = -coef if change < -coef else coef if change > coef else change
            clipped_error = old[i] + clipped_change - returns[i]
            clipped_square = clipped_error * clipped_error
            clipped_slope = clipped_error if clipped_change == change else F(0)
            if clipped_square > square:
                square, slope = clipped_square, clipped_slope
            elif clipped_square == square:
                slope = F(0.5) * (slope + clipped_slope)
        total += square
        delta[i, 0] = weight * slope / F(n)
    return 0.5 * total / n


@njit(**OPTIONS)
def norm(x):
    total = 0.0
    for i in range(x.shape[0]):
        total += np.float64(x[i]) * np.float64(x[i])
    return math.sqrt(total)


@njit(**OPTIONS)
def adam(theta, gradient, scale, first, second, limits, lr, beta1, beta2, eps, step):
    """Adam with bias correction on the scaled gradient, then w <- clip(w, -limit, limit); all [P]."""
    size, root = F(lr / (1.0 - beta1**step)), F(math.sqrt(1.0 - beta2**step))
    rate1, keep2, rate2, small = F(1.0 - beta1), F(beta2), F(1.0 - beta2), F(eps)
    for i in range(theta.shape[0]):
        g = gradient[i] * scale
        m = first[i] + rate1 * (g - first[i])
        v = keep2 * second[i] + rate2 * g * g
        w = theta[i] - size * m / (np.sqrt(v) / root + small)
        first[i], second[i] = m, v
        theta[i] = limits[i] if w > limits[i] else -limits[i] if w < -limits[i] else w


@njit(**OPTIONS)
def count_saturated(h, counts):
    """Add the number of tanh units with |h| >= 0.95 and >= 0.9, and of all, to counts [3]."""
    for l in range(1, len(h) - 1):
        for x in h[l].flat:
            counts[0] += abs(x) >= F(0.95)
            counts[1] += abs(x) >= F(0.9)
            counts[2] += 1


@njit(fastmath=FLAGS, error_model="numpy", nogil=True, cache=True)
def learn(
    theta, first, second, limits,  # [P]: parameters, Adam's moments, clipping limits
    hidden, order, size,  # units of the hidden layers; permutations of the steps [epochs, t]; steps of a minibatch
    observations, actions, scalars,  # [t, d], [t, a], [t, 4]: log-probability, advantage, return, value
    settings,  # lr, beta1, beta2, eps, clip_coef, vf_coef, ent_coef, max_grad_norm
    clip_values, normalize_advantages, step,  # step: number of previous updates
    log_ratio, found,  # [n] of the last minibatch; [8], of the last one but for the sums of fractions and norms
):  # fmt: skip
    lr, beta1, beta2, eps, coef, vf_coef, ent_coef, max_norm = settings
    steps, inputs = observations.shape
    outputs = actions.shape[1]
    layers = len(hidden) + 1
    x = np.empty((size, inputs), F)
    values, means = [x], [x]
    value_deltas, mean_deltas = [x], [x]
    value_end = outputs
    for l in range(layers):
        below = inputs if l == 0 else hidden[l - 1]
        value_units, mean_units = (1, outputs) if l == layers - 1 else (hidden[l], hidden[l])
        value_end += value_units * (below + 1)
        values.append(np.empty((size, value_units), F))
        value_deltas.append(np.empty((size, value_units), F))
        means.append(np.empty((size, mean_units), F))
        mean_deltas.append(np.empty((size, mean_units), F))
    gradient = np.empty_like(theta)
    drawn_actions, drawn = np.empty((size, outputs), F), np.empty((4, size), F)
    fractions, norms, policy, value, entropy = 0.0, 0.0, 0.0, 0.0, 0.0
    for epoch in range(order.shape[0]):
        for start in range(0, steps - size + 1, size):
            for i in range(size):
                row = order[epoch, start + i]
                x[i] = observations[row]
                drawn_actions[i] = actions[row]
                for k in range(4):
                    drawn[k, i] = scalars[row, k]
            if normalize_advantages:
                normalize(drawn[1])
            forward(theta, outputs, values)
            forward(theta, value_end, means)
            log_std = theta[:outputs]
            entropy = 0.0
            for j in range(outputs):
                entropy += log_std[j] + F(0.5) + HALF_LOG_2PI
            policy, fraction = policy_loss(
                means[layers], log_std, drawn_actions, drawn[0], drawn[1], coef, mean_deltas[layers],
                gradient[:outputs], log_ratio,
            )  # fmt: skip
            value = value_loss(
                values[layers], drawn[2], drawn[3], F(coef), clip_values, F(vf_coef), value_deltas[layers]
            )
            gradient[:outputs] -= F(ent_coef)
            backward(theta, gradient, value_end, values, value_deltas)
            backward(theta, gradient, theta.shape[0], means, mean_deltas)
            length = norm(gradient)
            scale = max_norm / (length + 1e-6)
            scale = 1.0 if scale > 1.0 else scale
            step += 1
            adam(theta, gradient, F(scale), first, second, limits, lr, beta1, beta2, eps, step)
            fractions += fraction
            norms += length
    found[0], found[1], found[2], found[3], found[4] = fractions, norms, policy, value, entropy
    found[5:8] = 0.0
    count_saturated(values, found[5:8])
    count_saturated(means, found[5:8])


@njit(fastmath=FLAGS, error_model="numpy", nogil=True, cache=True)
def act(x, weights, hidden, out):
    """Mean actions of the policies: x [s, d] -> out [s, a].

    weights [s, entries]: weight [in, out] and bias [out] of each layer.
    """
    outputs = out.shape[1]
    widest = outputs
    for units in hidden:
        widest = max(widest, units)
    h, z = np.empty(max(widest, x.shape[1]), F), np.empty(max(widest, x.shape[1]), F)
    for s in range(x.shape[0]):
        inputs, start = x.shape[1], 0
        h[:inputs] = x[s]
        for l in range(len(hidden) + 1):
            units = hidden[l] if l < len(hidden) else outputs
            bias = weights[s, start + inputs * units : start + (inputs + 1) * units]
            for j in range(units):
                z[j] = F(0)
            i = 0
            while i + 4 <= inputs:
                row = weights[s, start + i * units : start + (i + 4) * units]
                h0, h1, h2, h3 = h[i], h[i + 1], h[i + 2], h[i + 3]
                for j in range(units):
                    z[j] += (h0 * row[j] + h1 * row[units + j]) + (h2 * row[2 * units + j] + h3 * row[3 * units + j])
                i += 4
            while i < inputs:
                row = weights[s, start + i * units : start + (i + 1) * units]
                for j in range(units):
                    z[j] += h[i] * row[j]
                i += 1
            for j in range(units):
                h[j] = tanh(z[j] + bias[j]) if l < len(hidden) else z[j] + bias[j]
            start += (inputs + 1) * units
            inputs = units
        out[s] = h[:outputs]


# Without fastmath, so that it equals NumPy bit for bit.
@njit(error_model="numpy", nogil=True, cache=True)
def observe(x, active, mean, var, count, epsilon, limit, out):
    """`Normalizer.observe`: x, mean, var, out [s, d], active [s], count [s, 1]."""
    for s in range(x.shape[0]):
        old = count[s, 0]
        total = old + 1.0
        if active[s]:
            count[s, 0] = total
        for j in range(x.shape[1]):
            if active[s]:
                delta = x[s, j] - mean[s, j]
                mean[s, j] += delta / total
                var[s, j] = (var[s, j] * old + delta * delta * (old / total)) / total
            found = (x[s, j] - mean[s, j]) / np.sqrt(var[s, j] + epsilon)
            out[s, j] = F(limit if found > limit else -limit if found < -limit else found)


@njit(error_model="numpy", nogil=True, cache=True)
def scale_rewards(rewards, terminated, active, discounted, mean, var, count, gamma, epsilon, limit, out):
    """`Normalizer.reward`: rewards, terminated, active, out [s]; the others [s, 1]."""
    for s in range(rewards.shape[0]):
        discounted[s, 0] *= gamma * (not terminated[s])
        discounted[s, 0] += rewards[s]
        if active[s]:
            old = count[s, 0]
            total = old + 1.0
            delta = discounted[s, 0] - mean[s, 0]
            mean[s, 0] += delta / total
            var[s, 0] = (var[s, 0] * old + delta * delta * (old / total)) / total
            count[s, 0] = total
        found = rewards[s] / np.sqrt(var[s, 0] + epsilon)
        out[s] = F(limit if found > limit else -limit if found < -limit else found)
