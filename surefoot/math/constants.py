"""Numbers in the definition of a policy. Imports nothing, because the light agent and the exporters need them too."""

LOG_STD_RANGE = (-20.0, 5.0)  # beyond this range, densities overflow float32
LEAST_STD = 1e-3  # gSDE: the feature that is always there, so that there is always some noise
GAMMA_CANDIDATES = 8  # a gamma variate of shape ≥ 1 takes the first with ≥ 95 % each: all fail once in 10¹⁰
BETA_EDGE = 1e-6  # minimum distance of a draw from the ends of (0, 1)
LAYER_NORM_EPS = 1e-5  # added to the variance of a layer's units before the square root
NORMALIZED_CLIP = 10.0  # normalised observations are clipped to ±this
LEAST_VARIANCE = 1e-8  # added to the variance of an observation before the square root
