/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long the sequences of a published trace are.
 *
 * In:   random numbers. Out: lengths of their distribution. Next: what measures memory.
 *
 * Context and generated tokens together of 253 consecutive requests, the first ones, of the Azure LLM
 * inference trace 2023, conversations (github.com/Azure/AzurePublicDataset, CC-BY; described in
 * Patel et al., "Splitwise", ISCA 2024): their quantiles in steps of 1/32. Mean 1137.
 */
#ifndef ATTND_TESTS_TRACE_H
#define ATTND_TESTS_TRACE_H

#include <stdint.h>

enum { TRACE_STEPS = 32, TRACE_LONGEST = 4176 };

/** A length for 32 random bits: between two quantiles all are as likely. */
static inline uint32_t trace_length(uint32_t random)
{
	static const uint16_t quantile[TRACE_STEPS + 1] = {
		95,   143,  257,  317,	349,  368,  387,  411,	420,  435,  465,
		482,  504,  521,  948,	1276, 1302, 1364, 1411, 1428, 1460, 1474,
		1483, 1492, 1500, 1518, 1529, 1544, 1583, 1642, 2295, 4124, TRACE_LONGEST,
	};
	uint32_t step = random / (UINT32_C(1) << 27), from = quantile[step], to = quantile[step + 1];

	return from + (uint32_t)((uint64_t)(random % (UINT32_C(1) << 27)) * (to - from + 1) >> 27);
}

#endif
