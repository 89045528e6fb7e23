"""The training loop of the fused backend. This file implements SGD on a leaky ReLU network in float32.

`kernel.py` writes a copy of this file for each method and replaces the part between the two markers; numba compiles
the copy.

`theta` [P] holds all weights and biases in the order of `model.parameters()`; the optimizer's states have the same
layout. The gradient of a layer is an outer product, g_ij = delta_i h_j, which is never stored: one pass
over the rows of a layer computes it, updates and clips the weights, sums up their norms, and multiplies the new
weights with two inputs: this sample's, for the loss after the update, and the next sample's, for its forward pass.
"""

# ruff: noqa: D103
# mypy: ignore-errors

import math

import numpy as np
from numba import njit

# Without nnan and ninf, so that divergence is visible.
FLAGS = {"reassoc", "contract", "arcp", "nsz", "afn"}
# Only `learn` is called from Python and cached by numba. Inlining puts everything into the cached function; otherwise a
# process that compiles and one that reads the cache round differently.
OPTIONS = {
    "fastmath": FLAGS,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "forceinline": True,
}


@njit(**OPTIONS)
def sqrt(x):
    return math.sqrt(x)


@njit(**OPTIONS)
def tanh(x):
    return math.tanh(x)


@njit(**OPTIONS)
def sign(x):
    return F(1) if x > F(0) else F(-1) if x < F(0) else F(0) * x


@njit(**OPTIONS)
def exact_exp(x):
    return math.exp(x)


@njit(**OPTIONS)
def exact_log(x):
    return math.log(x)


@njit(**OPTIONS)
def bare_exp(x):
    """e^x in float32 for x in [-87, 88], within 2e-7: 2^k times Cephes' polynomial."""
    x = np.float32(min(max(x, np.float32(-87.0)), np.float32(88.0)))
    k = np.int32(x * np.float32(1.44269504) + (np.float32(0.5) if x > np.float32(0) else np.float32(-0.5)))
    r = x - np.float32(k) * np.float32(0.693359375) + np.float32(k) * np.float32(2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    return (p * r * r + r + np.float32(1)) * np.int32((k + np.int32(127)) << np.int32(23)).view(np.float32)


@njit(**OPTIONS)
def bare_log(x):
    """log x in float32 for positive normal x, within 2e-7: Cephes' polynomial."""
    bits = np.float32(x).view(np.int32)
    k = np.int32((bits >> np.int32(23)) - np.int32(126))
    m = np.int32((bits & np.int32(0x7FFFFF)) | np.int32(0x3F000000)).view(np.float32)
    low = m < np.float32(0.70710678)
    e = np.float32(k) - (np.float32(1) if low else np.float32(0))
    f = (m + m if low else m) - np.float32(1)
    z = f * f
    p = (np.float32(1.1676998740e-1) + f * np.float32(-1.1514610310e-1)) + z * np.float32(7.0376836292e-2)
    p = (np.float32(1.4249322787e-1) + f * np.float32(-1.2420140846e-1)) + z * p
    p = (np.float32(2.0000714765e-1) + f * np.float32(-1.6668057665e-1)) + z * p
    p = (np.float32(3.3333331174e-1) + f * np.float32(-2.4999993993e-1)) + z * p
    y = f * z * p - np.float32(2.12194440e-4) * e - np.float32(0.5) * z
    return f + y + np.float32(0.693359375) * e


@njit(**OPTIONS)
def fast_exp(x):
    """e^x in float32. Unlike math.exp, it vectorizes."""
    y = bare_exp(x)
    y = np.float32(np.inf) if x > np.float32(88.72) else y
    return np.float32(0) if x < np.float32(-87.33) else y


@njit(**OPTIONS)
def fast_log(x):
    """log x in float32. Unlike math.log, it vectorizes. Subnormal numbers count as 0."""
    y = bare_log(x)
    y = np.float32(-np.inf) if x < np.float32(1.1754944e-38) else y
    y = x if x == np.float32(np.inf) else y
    return np.float32(np.nan) if x < np.float32(0) or x != x else y


@njit(**OPTIONS)
def mix(x):
    """A permutation of the 32-bit integers that mixes all bits (Wellons' lowbias32)."""
    x = np.uint32(x ^ (x >> np.uint32(16)))
    x = np.uint32(x * np.uint32(0x7FEB352D))
    x = np.uint32(x ^ (x >> np.uint32(15)))
    x = np.uint32(x * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


@njit(**OPTIONS)
def mix64(x):
    """The finalizer of splitmix64."""
    x = np.uint64(x)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(**OPTIONS)
def fill_normal(out, bits, seed, step, start):
    """Fill `out`, of even length, with N(0, 1) by the Box-Muller method. Seed, step and start determine the numbers.

    Two 32-bit numbers (scratch space `bits`: [2, half or more]) give a pair of draws: a radius, and an angle in
    [-pi/4, pi/4] that is mirrored at random. Three short loops vectorize better than one long loop.
    """
    key = mix64(mix64(mix64(np.uint64(seed)) + np.uint64(step)) + np.uint64(start))
    low, high = np.uint32(key), np.uint32(key >> np.uint64(32))
    half = out.shape[0] // 2
    left, right, of_radius, of_angle = out[:half], out[half:], bits[0], bits[1]
    for k in range(half):
        a = mix(np.uint32(mix(np.uint32(np.uint32(k) + low)) ^ high))
        of_radius[k] = a
        of_angle[k] = mix(np.uint32(a + np.uint32(0x9E3779B9)))
    for k in range(half):
        a = of_radius[k]
        u = (np.float32(np.int32(a >> np.uint32(1))) + np.float32(0.5)) * np.float32(2.0**-31)
        radius = math.sqrt(np.float32(-2) * bare_log(u))
        left[k] = radius if (a & np.uint32(1)) == np.uint32(0) else -radius
    for k in range(half):
        b = of_angle[k]
        angle = np.float32(np.int32(b)) * np.float32(math.pi / 2**33)
        z = angle * angle
        sine = np.float32(8.3321608736e-3) - z * np.float32(1.9515295891e-4)
        sine = angle + angle * z * (np.float32(-1.6666654611e-1) + z * sine)
        cosine = np.float32(-1.388731625e-3) + z * np.float32(2.443315711e-5)
        cosine = np.float32(1) - np.float32(0.5) * z + z * z * (np.float32(4.166664568e-2) + z * cosine)
        swap = (b & np.uint32(1)) == np.uint32(0)
        radius = left[k]
        left[k] = radius * (cosine if swap else sine)
        right[k] = radius * (sine if swap else cosine)


@njit(**OPTIONS)
def draw(out, bits, columns, start, seed, step, injected, t):
    """The noise of one row: generated, or taken from `injected`."""
    if injected.shape[0] > 0:
        for j in range(columns):
            out[j] = injected[t, start + j]
    else:
        fill_normal(out, bits, seed, step, start)


# specialized from here
F = np.float32
DIAGNOSTICS = True
SNAPSHOT = False
PER_UNIT = False
SCALARS = 1
STATES = 0
INITIAL = False


@njit(**OPTIONS)
def activation(z):
    return z if z > F(0) else F(0.01) * z


@njit(**OPTIONS)
def derivative(h):
    return F(1) if h > F(0) else F(0.01)


@njit(**OPTIONS)
def saturated(h):
    return F(0)


@njit(**OPTIONS)
def scalars(out, step, s, box, rms, settings):
    out[0] = settings[0]


@njit(**OPTIONS)
def rows_pass(
    theta, state, initial, c, row_box, column_box, start, rows, columns, delta, h, after, ahead, z_after, z_ahead,
    normals, bits, seed, step, injected, t,
):  # fmt: skip
    squares = absolutes = clipped = 0.0
    c0 = c[0]
    for i in range(rows):
        a = start + i * columns
        w_row = theta[a : a + columns]
        d = delta[i]
        sum_ahead, sum_after, sum_squares, sum_absolutes, sum_clipped = F(0), F(0), F(0), F(0), F(0)
        for j in range(columns):
            w, g = w_row[j], d * h[j]
            w = w - c0 * g
            w_row[j] = w
            sum_ahead += w * ahead[j]
            sum_after += w * after[j]
            sum_squares += w * w
            sum_absolutes += abs(w)
        z_ahead[i] = sum_ahead
        z_after[i] = sum_after
        squares += sum_squares
        absolutes += sum_absolutes
        clipped += sum_clipped
    return squares, absolutes, clipped


first_rows_pass = columns_pass = first_columns_pass = rows_pass
# to here


@njit(**OPTIONS)
def dot(w, h):
    total = F(0)
    for j in range(w.shape[0]):
        total += w[j] * h[j]
    return total


@njit(**OPTIONS)
def read(codes, table, columns, x):
    for j in range(columns.shape[0]):
        x[j] = table[codes[columns[j]]]


@njit(**OPTIONS)
def activate(z, b, h):
    """Set h = activation(z + b) and return the numbers of negative and of saturated units."""
    negative, flat = 0, 0.0
    for i in range(h.shape[0]):
        pre = z[i] + b[i]
        negative += pre < F(0)
        h[i] = activation(pre)
        flat += saturated(h[i])
    return negative, flat


@njit(**OPTIONS)
def log_softmax(z, b, out):
    """Set out = log softmax(z + b) and return its argmax."""
    best = 0
    for i in range(out.shape[0]):
        out[i] = z[i] + b[i]
        if out[i] > out[best]:
            best = i
    largest = out[best]
    total = F(0)
    for i in range(out.shape[0]):
        out[i] -= largest
        total += math.exp(out[i])
    total = math.log(total)
    for i in range(out.shape[0]):
        out[i] -= total
    return best


@njit(**OPTIONS)
def sums(values):
    squares, absolutes = F(0), F(0)
    for value in values:
        squares += value * value
        absolutes += abs(value)
    return squares, absolutes


@njit(**OPTIONS)
def back(w, start, delta, out, h):
    """The delta of the previous layer: (W^T delta) * derivative(h)."""
    columns = out.shape[0]
    out[:] = F(0)
    for i in range(delta.shape[0]):
        a = start + i * columns
        row = w[a : a + columns]
        d = delta[i]
        for j in range(columns):
            out[j] += d * row[j]
    for j in range(columns):
        out[j] *= derivative(h[j])


@njit(**OPTIONS)
def update(
    theta, state, initial, c, settings, constants, row_box, column_box,
    start, rows, columns, delta, h, after, ahead, z_after, z_ahead, normals, bits, seed, step, injected, t,
):  # fmt: skip
    """Update one tensor: weights, or biases as one row with the gradient 1 * delta."""
    scalars(c, step, constants[0], constants[1], constants[2], settings)
    if PER_UNIT and row_box[0] == np.inf:
        if SNAPSHOT and step == 1:
            return first_columns_pass(
                theta, state, initial, c, row_box, column_box, start, rows, columns, delta, h, after, ahead,
                z_after, z_ahead, normals, bits, seed, step, injected, t,
            )  # fmt: skip
        return columns_pass(
            theta, state, initial, c, row_box, column_box, start, rows, columns, delta, h, after, ahead,
            z_after, z_ahead, normals, bits, seed, step, injected, t,
        )  # fmt: skip
    if SNAPSHOT and step == 1:
        return first_rows_pass(
            theta, state, initial, c, row_box, column_box, start, rows, columns, delta, h, after, ahead,
            z_after, z_ahead, normals, bits, seed, step, injected, t,
        )  # fmt: skip
    return rows_pass(
        theta, state, initial, c, row_box, column_box, start, rows, columns, delta, h, after, ahead, z_after, z_ahead,
        normals, bits, seed, step, injected, t,
    )  # fmt: skip


@njit(fastmath=FLAGS, error_model="numpy")
def update_one(theta, state, initial, c, settings, constants, row_box, column_box, gradient, z, step, noise):
    """Update one row of weights with a given gradient and noise [1, n]; for tests of a rule."""
    n = theta.shape[0]
    normals, bits = np.zeros(n + 1, F), np.zeros((2, n), np.uint32)
    update(
        theta, state, initial, c, settings, constants, row_box, column_box, 0, 1, n, np.ones(1, F),
        gradient, gradient, gradient, z, z, normals, bits, 0, step, noise, 0,
    )  # fmt: skip


@njit(fastmath=FLAGS, error_model="numpy", nogil=True, cache=True)
def learn(
    codes, labels, table, rows, columns, classes,  # the task
    theta, state, initial,  # all parameters, [P], [states, P], [P]
    sizes, constants, settings,  # units in each layer; s, box, rms of each tensor; the method's settings
    row_box, column_box,  # [tensors, widest], for per-unit boxes: the row's box, or the column's if it is inf
    step, seed, injected,  # number of previous updates; noise to use instead of generated noise, [steps, P] or empty
    totals,  # [10]: sums of the metrics over the steps, which are added to
):  # fmt: skip
    layers = sizes.shape[0] - 1
    widest = sizes.max()
    starts = np.zeros(layers + 1, np.int64)  # of each layer's weights; its biases follow
    for l in range(layers):
        starts[l + 1] = starts[l] + sizes[l + 1] * (sizes[l] + 1)
    h = np.zeros((layers + 1, widest), F)  # this sample's activations, input first
    h_ahead = np.zeros((layers + 1, widest), F)
    h_after = np.zeros((layers + 1, widest), F)
    delta = np.zeros((layers + 1, widest), F)
    z_ahead = np.zeros(widest, F)
    z_after = np.zeros(widest, F)
    output = np.zeros(sizes[layers], F)
    scratch = np.zeros(widest, F)
    one = np.ones(1, F)
    c = np.zeros(SCALARS, F)
    normals = np.zeros(widest + widest % 2, F)
    bits = np.zeros((2, widest), np.uint32)
    negative, flat = 0, 0.0
    best = 0

    read(codes[rows[0]], table, columns, h[0])
    for l in range(layers):
        m, n = sizes[l + 1], sizes[l]
        b = theta[starts[l] + m * n : starts[l + 1]]
        for i in range(m):
            a = starts[l] + i * n
            z_ahead[i] = dot(theta[a : a + n], h[l])
        if l < layers - 1:
            more, flatter = activate(z_ahead, b, h[l + 1, :m])
            negative += more
            flat += flatter
        else:
            best = log_softmax(z_ahead, b, output)

    for t in range(rows.shape[0]):
        step += 1
        y = classes[labels[rows[t]]]
        loss = -output[y]
        totals[0] += best == y
        totals[1] += loss
        for i in range(output.shape[0]):
            delta[layers, i] = math.exp(output[i])
        delta[layers, y] -= F(1)
        for l in range(layers - 1, 0, -1):
            back(theta, starts[l], delta[l + 1, : sizes[l + 1]], delta[l, : sizes[l]], h[l])
        if DIAGNOSTICS:
            gradient_squares, gradient_absolutes, weight_squares, weight_absolutes, clipped = 0.0, 0.0, 0.0, 0.0, 0.0
            for l in range(layers):
                h2, h1 = sums(h[l, : sizes[l]])
                d2, d1 = sums(delta[l + 1, : sizes[l + 1]])
                gradient_squares += h2 * d2
                gradient_absolutes += h1 * d1
            totals[5] += math.sqrt(gradient_squares)
            totals[6] += gradient_absolutes
            totals[8] += negative
            totals[9] += flat
        read(codes[rows[min(t + 1, rows.shape[0] - 1)]], table, columns, h_ahead[0])
        negative, flat = 0, 0.0
        below_after = h[0]
        for l in range(layers):
            m, n = sizes[l + 1], sizes[l]
            start = starts[l]
            middle = start + m * n
            d = delta[l + 1, :m]
            squares, absolutes, cut = update(
                theta, state, initial, c, settings, constants[2 * l], row_box[2 * l], column_box[2 * l],
                start, m, n, d, h[l], below_after, h_ahead[l], z_after, z_ahead, normals, bits, seed, step, injected, t,
            )  # fmt: skip
            _, _, cut_bias = update(
                theta, state, initial, c, settings, constants[2 * l + 1], row_box[2 * l + 1], column_box[2 * l + 1],
                middle, 1, m, one, d, d, d, scratch, scratch, normals, bits, seed, step, injected, t,
            )  # fmt: skip
            b = theta[middle : starts[l + 1]]
            if DIAGNOSTICS:
                weight_squares += squares
                weight_absolutes += absolutes
                clipped += cut + cut_bias
            if l < layers - 1:
                more, flatter = activate(z_ahead, b, h_ahead[l + 1, :m])
                negative += more
                flat += flatter
                if DIAGNOSTICS:
                    activate(z_after, b, h_after[l + 1, :m])
                    below_after = h_after[l + 1]
            else:
                if DIAGNOSTICS:
                    log_softmax(z_after, b, output)
                    after = -output[y]
                    totals[2] += max(1.0 - after / max(loss, F(1e-8)), 0.0)
                    totals[3] += math.sqrt(weight_squares)
                    totals[4] += weight_absolutes
                    totals[7] += clipped
                best = log_softmax(z_ahead, b, output)
        h, h_ahead = h_ahead, h
