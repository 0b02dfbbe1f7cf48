/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both kinds of attention share: see attention.h.
 */
#include "attention.h"

#include <stddef.h>

void attention_destroy(struct attention *a)
{
	if (a)
		a->ops->destroy(a);
}
