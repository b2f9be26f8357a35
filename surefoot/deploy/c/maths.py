"""The C functions that a policy may need; only those that are used are written. None of them uses the C library.

Numbers are kept as `float` and computed as `real`: double, unless the file is compiled with -DSUREFOOT_REAL=float, for
processors without doubles (results then agree to about five digits).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Function:
    code: str
    needs: tuple[str, ...] = ()


FUNCTIONS = {  # in the order in which they are written
    "clip": Function(
        """static real clip(real x, real low, real high) { return x < low ? low : x > high ? high : x; }"""
    ),
    "power_of_two": Function(
        """static real power_of_two(int k)
{
    real result = 1, base = k < 0 ? (real)0.5 : (real)2;
    int n = k < 0 ? -k : k;
    for (; n; n >>= 1, base *= base)
        if (n & 1) result *= base;
    return result;
}"""
    ),
    "own_exp": Function(
        """/* e^x = 2^k e^r with |r| <= log(2)/2, where a Taylor series is exact to rounding. */
static real own_exp(real x)
{
    real r, term = 1, sum = 1;
    int k, i;
    if (x != x) return x;
    if (x < -700) return 0;
    if (x > 88) x = 88;
    k = (int)(x * (real)1.4426950408889634 + (x < 0 ? (real)-0.5 : (real)0.5));
    r = x - (real)k * (real)0.693359375 + (real)k * (real)2.12194440054690583e-4;
    for (i = 1; i < 15; i++) {
        term *= r / (real)i;
        sum += term;
    }
    return sum * power_of_two(k);
}""",
        ("power_of_two",),
    ),
    "log_ratio": Function(
        """/* log((1 + z) / (1 - z)) for small z. */
static real log_ratio(real z)
{
    real sum = 0;
    int i;
    for (i = 25; i > 0; i -= 2) sum = sum * z * z + 1 / (real)i;
    return 2 * z * sum;
}"""
    ),
    "own_log": Function(
        """/* For x > 0. */
static real own_log(real x)
{
    int k = 0;
    if (!(x - x == 0)) return x;
    for (; x > (real)1.4142135623730951; k++) x *= (real)0.5;
    for (; x < (real)0.7071067811865476 && k > -2000; k--) x *= 2;
    return log_ratio((x - 1) / (x + 1)) + (real)k * (real)0.6931471805599453;
}""",
        ("log_ratio",),
    ),
    "own_tanh": Function(
        """static real own_tanh(real x)
{
    real e;
    if (x > 20) return 1;
    if (x < -20) return -1;
    e = own_exp(2 * x);
    return (e - 1) / (e + 1);
}""",
        ("own_exp",),
    ),
    "sigmoid": Function(
        """static real sigmoid(real x) { return 1 / (1 + own_exp(-x)); }""",
        ("own_exp",),
    ),
    "softplus": Function(
        """/* log(1 + e^x), exact for very low x as well. */
static real softplus(real x)
{
    real e;
    if (x > 20) return x;
    e = own_exp(x);
    return e < (real)0.4 ? log_ratio(e / (2 + e)) : own_log(1 + e);
}""",
        ("own_exp", "own_log", "log_ratio"),
    ),
    "own_sqrt": Function(
        """/* Newton's method, from a power of two near the root. For x >= 0. */
static real own_sqrt(real x)
{
    real near = x, root = 1;
    int i;
    if (!(x > 0)) return 0;
    for (; near > 4; near *= (real)0.25) root *= 2;
    for (; near < 1 && root > (real)1e-150; near *= 4) root *= (real)0.5;
    for (i = 0; i < 7; i++) root = (root + x / root) / 2;
    return root;
}"""
    ),
    "uniform": Function(
        """/* In [0, 1): 24 bits of splitmix64. */
static real uniform(uint64_t *random)
{
    uint64_t z = *random += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (real)((z ^ (z >> 31)) >> 40) * (real)5.9604644775390625e-8;
}"""
    ),
    "log_uniform": Function(
        """static real log_uniform(uint64_t *random)
{
    real u = uniform(random);
    return own_log(u > 0 ? u : (real)1.1754943508222875e-38);
}""",
        ("uniform", "own_log"),
    ),
    "normal": Function(
        """/* The polar method of Marsaglia. */
static real normal(uint64_t *random)
{
    real x, y, s;
    do {
        x = 2 * uniform(random) - 1;
        y = 2 * uniform(random) - 1;
        s = x * x + y * y;
    } while (s >= 1 || s == 0);
    return x * own_sqrt(-2 * own_log(s) / s);
}""",
        ("uniform", "own_log", "own_sqrt"),
    ),
    "gumbel": Function(
        """static real gumbel(uint64_t *random)
{
    real e = -log_uniform(random);
    return -own_log(e > 0 ? e : (real)1.1754943508222875e-38);
}""",
        ("log_uniform", "own_log"),
    ),
    "logistic": Function(
        """static real logistic(uint64_t *random)
{
    real u = uniform(random);
    return own_log(u > 0 ? u : (real)1.1754943508222875e-38) - own_log(1 - u);
}""",
        ("uniform", "own_log"),
    ),
    "gamma_variate": Function(
        """/* Marsaglia and Tsang 2000, for a shape of at least 1: the first accepted candidate, or the last. */
static real gamma_variate(real shape, const float *normals, const float *log_uniforms)
{
    real d = shape - (real)1 / 3, v = 1;
    int i;
    for (i = 0; i < GAMMA_CANDIDATES; i++) {
        real z = (real)normals[i], root = 1 + z / own_sqrt(9 * d);
        real cut = root < (real)1e-6 ? (real)1e-6 : root;
        v = cut * cut * cut;
        if (root > 0 && (real)log_uniforms[i] < z * z / 2 + d * (1 - v + own_log(v))) break;
    }
    return d * v;
}""",
        ("own_sqrt", "own_log"),
    ),
    "linear": Function(
        """static void linear(const float *x, const float *weight, const float *bias, int inputs, int outputs, float *y)
{
    int i, j;
    for (j = 0; j < outputs; j++, weight += inputs) {
        real a = (real)bias[j], b = 0;
        for (i = 0; i + 1 < inputs; i += 2) {
            a += (real)weight[i] * (real)x[i];
            b += (real)weight[i + 1] * (real)x[i + 1];
        }
        if (i < inputs) a += (real)weight[i] * (real)x[i];
        y[j] = (float)(a + b);
    }
}"""
    ),
    "convolve": Function(
        """/* sizes: channels, height and width of x, outputs, height and width of y, kernel, strides, padding. */
static void convolve(const float *x, const float *weight, const float *bias, const int *sizes, float *y)
{
    int channels = sizes[0], height = sizes[1], width = sizes[2], kernel = sizes[6];
    int o, r, s, c, i, j;
    for (o = 0; o < sizes[3]; o++)
        for (r = 0; r < sizes[4]; r++)
            for (s = 0; s < sizes[5]; s++) {
                const float *w = weight + o * channels * kernel * kernel;
                int top = r * sizes[7] - sizes[9], left = s * sizes[8] - sizes[9];
                real sum = (real)bias[o];
                for (c = 0; c < channels; c++)
                    for (i = 0; i < kernel; i++, w += kernel) {
                        int row = top + i;
                        if (row < 0 || row >= height) continue;
                        for (j = 0; j < kernel; j++) {
                            int column = left + j;
                            if (column < 0 || column >= width) continue;
                            sum += (real)w[j] * (real)x[(c * height + row) * width + column];
                        }
                    }
                *y++ = (float)sum;
            }
}"""
    ),
    "max_pool": Function(
        """/* sizes: channels, height and width of x, height and width of y, kernel, stride, padding. */
static void max_pool(const float *x, const int *sizes, float *y)
{
    int height = sizes[1], width = sizes[2], c, r, s, i, j;
    for (c = 0; c < sizes[0]; c++)
        for (r = 0; r < sizes[3]; r++)
            for (s = 0; s < sizes[4]; s++) {
                float best = -3.402823466e38f;
                for (i = 0; i < sizes[5]; i++)
                    for (j = 0; j < sizes[5]; j++) {
                        int row = r * sizes[6] - sizes[7] + i, column = s * sizes[6] - sizes[7] + j;
                        if (row < 0 || row >= height || column < 0 || column >= width) continue;
                        if (!(x[(c * height + row) * width + column] <= best))
                            best = x[(c * height + row) * width + column];
                    }
                *y++ = best;
            }
}"""
    ),
    "layer_norm": Function(
        """static void layer_norm(const float *x, const float *gain, const float *bias, int size, float *y)
{
    real mean = 0, variance = 0, scale;
    int i;
    for (i = 0; i < size; i++) mean += (real)x[i];
    mean /= (real)size;
    for (i = 0; i < size; i++) variance += ((real)x[i] - mean) * ((real)x[i] - mean);
    scale = 1 / own_sqrt(variance / (real)size + (real)LAYER_NORM_EPS);
    for (i = 0; i < size; i++) y[i] = (float)(((real)x[i] - mean) * scale * (real)gain[i] + (real)bias[i]);
}""",
        ("own_sqrt",),
    ),
    "activate_tanh": Function(
        """static void activate_tanh(const float *x, int size, float *y)
{
    int i;
    for (i = 0; i < size; i++) y[i] = (float)own_tanh((real)x[i]);
}""",
        ("own_tanh",),
    ),
    "activate_relu": Function(
        """static void activate_relu(const float *x, int size, float *y)
{
    int i;
    for (i = 0; i < size; i++) y[i] = x[i] < 0 ? 0 : x[i];
}"""
    ),
    "activate_elu": Function(
        """static void activate_elu(const float *x, int size, float *y)
{
    int i;
    for (i = 0; i < size; i++) y[i] = x[i] > 0 ? x[i] : (float)(own_exp((real)x[i]) - 1);
}""",
        ("own_exp",),
    ),
    "activate_silu": Function(
        """static void activate_silu(const float *x, int size, float *y)
{
    int i;
    for (i = 0; i < size; i++) y[i] = (float)((real)x[i] * sigmoid((real)x[i]));
}""",
        ("sigmoid",),
    ),
    "gru": Function(
        """/* seen and kept: what the gates (reset, update, new) get from the input and from the memory. */
static void gru(const float *seen, const float *kept, const float *before, int hidden, float *after)
{
    int i;
    for (i = 0; i < hidden; i++) {
        real reset = sigmoid((real)seen[i] + (real)kept[i]);
        real update = sigmoid((real)seen[hidden + i] + (real)kept[hidden + i]);
        real fresh = own_tanh((real)seen[2 * hidden + i] + reset * (real)kept[2 * hidden + i]);
        after[i] = (float)((1 - update) * fresh + update * (real)before[i]);
    }
}""",
        ("sigmoid", "own_tanh"),
    ),
    "lstm": Function(
        """/* seen and kept: what the gates (input, forget, cell, output) get from the input and from the memory. */
static void lstm(const float *seen, const float *kept, const float *before, int hidden, float *after)
{
    int i;
    for (i = 0; i < hidden; i++) {
        real gate[4], cell;
        int g;
        for (g = 0; g < 4; g++) gate[g] = (real)seen[g * hidden + i] + (real)kept[g * hidden + i];
        cell = sigmoid(gate[1]) * (real)before[hidden + i] + sigmoid(gate[0]) * own_tanh(gate[2]);
        after[hidden + i] = (float)cell;
        after[i] = (float)(sigmoid(gate[3]) * own_tanh(cell));
    }
}""",
        ("sigmoid", "own_tanh"),
    ),
    "all_finite": Function(
        """static int all_finite(const float *x, int size)
{
    int i;
    for (i = 0; i < size; i++)
        if (!(x[i] - x[i] == 0)) return 0;
    return 1;
}"""
    ),
    "largest": Function(
        """/* The position of the first largest. */
static int largest(const float *x, int size)
{
    int i, best = 0;
    for (i = 1; i < size; i++)
        if (x[i] > x[best]) best = i;
    return best;
}"""
    ),
}


def with_needs(names: set[str]) -> list[str]:
    """These functions and all that they call, in the order in which they must be written."""
    wanted, open_ends = set(), list(names)
    while open_ends:
        name = open_ends.pop()
        if name not in wanted:
            wanted.add(name)
            open_ends.extend(FUNCTIONS[name].needs)
    return [name for name in FUNCTIONS if name in wanted]
