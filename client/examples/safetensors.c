/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The safetensors reader: see safetensors.h.
 *
 * In:   a mapped file; every number of its header is checked before it is used.
 * Out:  float copies of tensors.
 * Next: model.c.
 */
#include "safetensors.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "half.h"

#define HEADER_LIMIT 100000000 /* bytes; the format's own limit */

enum { MAX_DIMS = 8 };

struct tensor {
	const char *name, *dtype; /* of the header's JSON */
	uint64_t shape[MAX_DIMS];
	size_t dims;
	uint64_t begin, bytes; /* in the data */
};

struct safetensors {
	char *path;
	uint8_t *map;
	size_t map_bytes;
	const uint8_t *data;
	uint64_t data_bytes;
	json_t *header;
	struct tensor *tensors; /* by name */
	size_t num_tensors;
};

static const struct {
	const char *name;
	uint32_t bytes;
} dtypes[] = {
	{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8}, {"U64", 8},  {"I32", 4},
	{"U32", 4}, {"I16", 2}, {"U16", 2}, {"I8", 1},	 {"U8", 1},  {"BOOL", 1},
};

static uint32_t dtype_bytes(const char *name)
{
	for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
		if (!strcmp(dtypes[i].name, name))
			return dtypes[i].bytes;
	return 0;
}

/* A JSON integer >= 0. */
static int get_size(const json_t *value, uint64_t *ret)
{
	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return -EINVAL;
	*ret = (uint64_t)json_integer_value(value);
	return 0;
}

/* The bytes that a shape needs, or -EOVERFLOW. */
static int shape_bytes(const struct tensor *t, uint64_t *ret)
{
	uint64_t bytes = dtype_bytes(t->dtype);

	for (size_t d = 0; d < t->dims; d++)
		if (__builtin_mul_overflow(bytes, t->shape[d], &bytes))
			return -EOVERFLOW;
	*ret = bytes;
	return 0;
}

static int parse_shape(struct tensor *t, const json_t *shape)
{
	if (!json_is_array(shape) || json_array_size(shape) > MAX_DIMS)
		return -EINVAL;
	t->dims = json_array_size(shape);
	for (size_t d = 0; d < t->dims; d++)
		if (get_size(json_array_get(shape, d), &t->shape[d]))
			return -EINVAL;
	return 0;
}

static int parse_tensor(const struct safetensors *s, const char *name, const json_t *entry, struct tensor *ret,
			struct error *error)
{
	struct tensor t = {.name = name, .dtype = json_string_value(json_object_get(entry, "dtype"))};
	const json_t *offsets = json_object_get(entry, "data_offsets");
	uint64_t end, bytes;

	if (!t.dtype || !dtype_bytes(t.dtype))
		return fail(error, -EINVAL, "%s: tensor %s: unknown dtype %s", s->path, name, t.dtype ? t.dtype : "");
	if (parse_shape(&t, json_object_get(entry, "shape")))
		return fail(error, -EINVAL, "%s: tensor %s: bad shape", s->path, name);
	if (json_array_size(offsets) != 2 || get_size(json_array_get(offsets, 0), &t.begin) ||
	    get_size(json_array_get(offsets, 1), &end) || end < t.begin)
		return fail(error, -EINVAL, "%s: tensor %s: bad data_offsets", s->path, name);
	if (end > s->data_bytes)
		return fail(error, -EINVAL, "%s: tensor %s ends at byte %llu of %llu: the file is truncated", s->path,
			    name, (unsigned long long)end, (unsigned long long)s->data_bytes);
	t.bytes = end - t.begin;
	if (shape_bytes(&t, &bytes) || bytes != t.bytes)
		return fail(error, -EINVAL, "%s: tensor %s: its shape does not fit its %llu bytes", s->path, name,
			    (unsigned long long)t.bytes);
	*ret = t;
	return 0;
}

static int compare_tensors(const void *a, const void *b)
{
	return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static int parse_header(struct safetensors *s, struct error *error)
{
	const char *name;
	json_t *entry;
	json_error_t bad;
	uint64_t length;

	if (s->map_bytes < 8)
		return fail(error, -EINVAL, "%s: not a safetensors file: %zu bytes", s->path, s->map_bytes);
	memcpy(&length, s->map, 8);
	length = le64toh(length);
	if (length > s->map_bytes - 8 || length > HEADER_LIMIT)
		return fail(error, -EINVAL,
			    "%s: a header of %llu bytes in a file of %zu: truncated or not safetensors", s->path,
			    (unsigned long long)length, s->map_bytes);
	s->data = s->map + 8 + length;
	s->data_bytes = s->map_bytes - 8 - length;
	s->header = json_loadb((const char *)s->map + 8, (size_t)length, JSON_REJECT_DUPLICATES, &bad);
	if (!json_is_object(s->header))
		return fail(error, -EINVAL, "%s: bad header: %s", s->path, s->header ? "not an object" : bad.text);
	s->tensors = calloc(json_object_size(s->header) + 1, sizeof(*s->tensors));
	if (!s->tensors)
		return fail_memory(error);
	json_object_foreach(s->header, name, entry)
	{
		if (!strcmp(name, "__metadata__"))
			continue;
		int rc = parse_tensor(s, name, entry, &s->tensors[s->num_tensors], error);
		if (rc)
			return rc;
		s->num_tensors++;
	}
	qsort(s->tensors, s->num_tensors, sizeof(*s->tensors), compare_tensors);
	return 0;
}

static int map_file(struct safetensors *s, const char *path, struct error *error)
{
	struct stat st;
	int rc = 0, fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return fail(error, -errno, "%s: %s", path, strerror(errno));
	if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		rc = fail(error, -EINVAL, "%s: not a regular file", path);
	} else if (st.st_size > 0) {
		void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (map == MAP_FAILED) {
			rc = fail(error, -errno, "%s: %s", path, strerror(errno));
		} else {
			s->map = map;
			s->map_bytes = (size_t)st.st_size;
		}
	}
	close(fd);
	return rc;
}

int safetensors_open(struct safetensors **ret, const char *path, struct error *error)
{
	struct safetensors *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return fail_memory(error);
	s->path = strdup(path);
	rc = s->path ? map_file(s, path, error) : fail_memory(error);
	if (!rc)
		rc = parse_header(s, error);
	if (rc) {
		safetensors_close(s);
		return rc;
	}
	*ret = s;
	return 0;
}

void safetensors_close(struct safetensors *s)
{
	if (!s)
		return;
	if (s->map)
		munmap(s->map, s->map_bytes);
	json_decref(s->header);
	free(s->tensors);
	free(s->path);
	free(s);
}

static const struct tensor *find(const struct safetensors *s, const char *name)
{
	struct tensor key = {.name = name};

	return bsearch(&key, s->tensors, s->num_tensors, sizeof(key), compare_tensors);
}

int safetensors_has(const struct safetensors *s, const char *name)
{
	return find(s, name) != NULL;
}

/* Data of a tensor may stand at any byte, so elements are copied out, little-endian. */
static int widen(const struct tensor *t, const uint8_t *data, float *out, size_t n)
{
	int is_f32 = !strcmp(t->dtype, "F32"), is_f16 = !strcmp(t->dtype, "F16");
	uint32_t u;
	uint16_t h;

	if (!is_f32 && !is_f16 && strcmp(t->dtype, "BF16") != 0)
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		if (is_f32) {
			memcpy(&u, data + i * 4, 4);
			out[i] = float_from_bits(le32toh(u));
		} else {
			memcpy(&h, data + i * 2, 2);
			out[i] = is_f16 ? float_from_f16(le16toh(h)) : float_from_bf16(le16toh(h));
		}
	}
	return 0;
}

int safetensors_load(const struct safetensors *s, const char *name, uint32_t rows, uint32_t columns, float **ret,
		     struct error *error)
{
	const struct tensor *t = find(s, name);
	size_t dims = rows ? 2 : 1, n = (size_t)(rows ? rows : 1) * columns;
	float *out;

	if (!t)
		return fail(error, -ENOENT, "%s: tensor %s is missing", s->path, name);
	if (t->dims != dims || t->shape[dims - 1] != columns || (rows && t->shape[0] != rows))
		return rows ? fail(error, -EINVAL, "%s: tensor %s must be [%u, %u] by config.json", s->path, name,
				   rows, columns)
			    : fail(error, -EINVAL, "%s: tensor %s must be [%u] by config.json", s->path, name,
				   columns);
	out = malloc(n * sizeof(*out));
	if (!out)
		return fail_memory(error);
	if (widen(t, s->data + t->begin, out, n)) {
		free(out);
		return fail(error, -EINVAL, "%s: tensor %s has dtype %s; F32, F16 and BF16 are supported", s->path,
			    name, t->dtype);
	}
	*ret = out;
	return 0;
}

/* Numbers and strings go in with their lengths, so that no two models give the same bytes. */
static void hash_string(crypto_generichash_state *hash, const char *string)
{
	uint64_t length = htole64(strlen(string));

	crypto_generichash_update(hash, (const uint8_t *)&length, sizeof(length));
	crypto_generichash_update(hash, (const uint8_t *)string, strlen(string));
}

static void hash_number(crypto_generichash_state *hash, uint64_t number)
{
	number = htole64(number);
	crypto_generichash_update(hash, (const uint8_t *)&number, sizeof(number));
}

int safetensors_fingerprint(const struct safetensors *s, const char *settings, uint8_t ret[16], struct error *error)
{
	crypto_generichash_state hash;

	if (sodium_init() < 0)
		return fail(error, -EIO, "libsodium does not start");
	crypto_generichash_init(&hash, NULL, 0, 16);
	hash_string(&hash, settings);
	for (size_t i = 0; i < s->num_tensors; i++) {
		const struct tensor *t = &s->tensors[i];
		hash_string(&hash, t->name);
		hash_string(&hash, t->dtype);
		hash_number(&hash, t->dims);
		for (size_t d = 0; d < t->dims; d++)
			hash_number(&hash, t->shape[d]);
		hash_number(&hash, t->bytes);
		crypto_generichash_update(&hash, s->data + t->begin, t->bytes);
	}
	crypto_generichash_final(&hash, ret, 16);
	return 0;
}
