/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader of the safetensors format: an 8-byte little-endian header length, a JSON header of
 * names, dtypes, shapes and byte ranges, then the data.
 *
 * In:   a file that nobody has checked.
 * Out:  tensors by name as float32, and a fingerprint of them all.
 * Next: model.c.
 */
#ifndef ATTND_EXAMPLES_SAFETENSORS_H
#define ATTND_EXAMPLES_SAFETENSORS_H

#include <stdint.h>

#include "error.h"

struct safetensors;

/** Map `path` and check its header: every tensor lies inside the file and has the bytes that its shape needs. */
int safetensors_open(struct safetensors **ret, const char *path, struct error *error);

/** NULL is fine. */
void safetensors_close(struct safetensors *s);

/** 1 if there is a tensor of this name. */
int safetensors_has(const struct safetensors *s, const char *name);

/**
 * A copy of the F32, F16 or BF16 tensor `name`, to be freed by the caller. Its shape must be
 * [rows][columns], or [columns] with rows == 0.
 */
int safetensors_load(const struct safetensors *s, const char *name, uint32_t rows, uint32_t columns, float **ret,
		     struct error *error);

/**
 * 128 bits of the names, dtypes, shapes and bytes of all tensors, whatever their order in the
 * file, and of `settings`: what else the model's K and V depend on.
 */
int safetensors_fingerprint(const struct safetensors *s, const char *settings, uint8_t ret[16], struct error *error);

#endif
