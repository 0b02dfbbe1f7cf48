/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What format.c needs to know of the portable attend.
 *
 * In:   a format.
 * Out:  the scratch that attend_c.c uses.
 * Next: format.c takes the largest over all kernels.
 */
#ifndef ATTND_KERNELS_ATTEND_C_H
#define ATTND_KERNELS_ATTEND_C_H

#include "kernels.h"

uint32_t attnd_attend_c_scratch(const struct attnd_kv_format *fmt);

#endif
