/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration: a file, a variable, a flag, of any bytes.
 *
 * In: text; the parts after the first and second NUL are a variable and a flag. Out: it is refused
 * with a text, or what is printed of it reads back as the same. Next: daemon/config.c.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../daemon/config.h"
#include "fuzz.h"

enum { LINE = 198 };

static int file_of(const void *text, size_t bytes)
{
	int fd = memfd_create("config", MFD_CLOEXEC);

	MUST(fd >= 0 && write(fd, text, bytes) == (ssize_t)bytes);
	return fd;
}

static int load(struct config *ret, int fd, const char *variable, const char *flag)
{
	char path[64], err[600] = "";
	char *argv[] = {(char[]){"attnd"}, (char[]){"--config"}, path, (char *)(uintptr_t)flag, NULL};
	char *env[] = {(char *)(uintptr_t)variable, NULL};
	int r;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	r = config_load(ret, argv, env, err, sizeof(err));
	MUST(r <= 0);
	MUST(!r || *err); /* a refusal says why */
	MUST(memchr(err, 0, sizeof(err)));
	return r;
}

static char *print(const struct config *cfg, size_t *ret_bytes)
{
	char *text = NULL;
	FILE *f = open_memstream(&text, ret_bytes);

	MUST(f);
	config_print(cfg, f);
	fclose(f);
	return text;
}

static void read_back(const struct config *cfg)
{
	struct config again, copy;
	size_t bytes, bytes2;
	char *text = print(cfg, &bytes), *text2, rest[1024];
	int fd = file_of(text, bytes);

	for (const char *at = text; *at; at += strcspn(at, "\n") + 1)
		if (strcspn(at, "\n") > LINE) { /* a flag may be longer than a file's line */
			free(text);
			close(fd);
			return;
		}
	MUST(load(&again, fd, NULL, NULL) == 0);
	text2 = print(&again, &bytes2);
	MUST(bytes2 > 0);
	MUST(config_copy(&copy, cfg) == 0);
	config_reload(&copy, &again, rest, sizeof(rest));
	MUST(!*rest); /* nothing differs */
	config_free(&copy);
	config_free(&again);
	free(text);
	free(text2);
	close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char *text = calloc(bytes + 3, 1), *variable, *flag;
	struct config cfg;
	size_t file;
	int fd;

	MUST(text);
	memcpy(text, data, bytes);
	file = strnlen(text, bytes);
	variable = text + file + (file < bytes);
	flag = variable + strlen(variable) + 1;
	flag = flag < text + bytes ? flag : text + bytes;
	fd = file_of(data, file);
	if (load(&cfg, fd, *variable ? variable : NULL, *flag ? flag : NULL) == 0) {
		if (!cfg.help && !cfg.version && cfg.private_fd < 0)
			read_back(&cfg);
		config_free(&cfg);
	}
	close(fd);
	free(text);
	return 0;
}
