/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choosing the next token: see sampling.h.
 */
#include "sampling.h"

#include <math.h>

/* In [0, 1): splitmix64 (Steele, Lea and Flood 2014). */
static double next_uniform(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static double weight(float logit, float best, float temperature)
{
	return exp(((double)logit - (double)best) / (double)temperature);
}

uint32_t sample_token(const float *logits, uint32_t n, float temperature, uint64_t *state, float *ret_margin)
{
	uint32_t best = 0;
	float second = -INFINITY;
	double sum = 0, target;

	for (uint32_t i = 1; i < n; i++) {
		if (logits[i] > logits[best]) {
			second = logits[best];
			best = i;
		} else if (logits[i] > second) {
			second = logits[i];
		}
	}
	*ret_margin = logits[best] - second;
	if (temperature <= 0)
		return best;
	for (uint32_t i = 0; i < n; i++)
		sum += weight(logits[i], logits[best], temperature);
	target = next_uniform(state) * sum;
	for (uint32_t i = 0; i < n; i++) {
		target -= weight(logits[i], logits[best], temperature);
		if (target < 0)
			return i;
	}
	return best;
}
