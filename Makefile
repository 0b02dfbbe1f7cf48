# SPDX-License-Identifier: Apache-2.0
#
# make            build everything into build/            O=dir: elsewhere
# make deps       install the Debian packages that are missing
# make demo       the main job: three runners share one cache
# make check      the test suite (make check-long: what takes longer)
# make install    DESTDIR= PREFIX=
#
# V=1 shows commands; SAN=address,undefined or SAN=thread builds with sanitizers; CC=clang-19.

O ?= build
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
SBINDIR ?= $(PREFIX)/sbin
INCLUDEDIR ?= $(PREFIX)/include
LIBDIR ?= $(PREFIX)/lib

VERSION := 0.1.0
SOMAJOR := 0

ifeq ($(origin CC),default)
CC := gcc
endif
PKG_CONFIG ?= pkg-config

# Ours are added with override, so that user flags survive.
CFLAGS ?= -O2 -g
ifneq ($(SAN),)
override CFLAGS += -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined
override LDFLAGS += -fsanitize=$(SAN)
endif
override CPPFLAGS += -D_GNU_SOURCE -DATTND_VERSION='"$(VERSION)"'
override CFLAGS += -std=c11 -Wall -Wextra -Wconversion -fPIC -fvisibility=hidden -pthread
override LDFLAGS += -pthread

ifeq ($(V),)
Q := @
say = @printf '  %-8s %s\n' '$(1)' '$(2)';
else
say =
endif

objs = $(patsubst %.c,$(O)/%.o,$(filter-out $(2),$(wildcard $(1)/*.c)))
SHM_OBJS := $(call objs,shm)
KERNELS_OBJS := $(call objs,kernels)
DAEMON_OBJS := $(call objs,daemon,daemon/main.c)
CLIENT_OBJS := $(call objs,client,client/attnctl.c)
EXAMPLE_OBJS := $(call objs,client/examples)

DAEMON_LIBS := -luring -lnuma -lhugetlbfs -lsystemd -lsodium -linih -ljansson -lm
CLIENT_LIBS := -lsodium
RUNNER_LIBS := -lopenblas -ljansson -lm

PROGRAMS := $(O)/attnd $(O)/attnctl $(O)/attnd-runner
LIBS := $(O)/libattnd.so.$(VERSION) $(O)/libattnd.a

.PHONY: all deps demo check check-long install clean
all: $(PROGRAMS) $(LIBS) $(O)/attnd.pc

include kernels/kernels.mk
include tests/tests.mk

$(O)/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(CFLAGS_$(subst /,_,$*)) -MMD -MP -c -o $@ $<

$(O)/libdaemon.a: $(DAEMON_OBJS) $(SHM_OBJS) $(KERNELS_OBJS)
$(O)/libattnd.a: $(CLIENT_OBJS) $(SHM_OBJS)
$(O)/%.a:
	$(call say,AR,$@)
	$(Q)rm -f $@; $(AR) rcs $@ $^

$(O)/libattnd.so.$(VERSION): $(CLIENT_OBJS) $(SHM_OBJS) client/libattnd.map
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libattnd.so.$(SOMAJOR) -Wl,--version-script=client/libattnd.map \
	  -o $@ $(filter %.o,$^) $(CLIENT_LIBS)
	$(Q)ln -sf libattnd.so.$(VERSION) $(O)/libattnd.so.$(SOMAJOR); ln -sf libattnd.so.$(SOMAJOR) $(O)/libattnd.so

$(O)/attnd: $(O)/daemon/main.o $(O)/libdaemon.a
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(DAEMON_LIBS)

$(O)/attnctl: $(O)/client/attnctl.o $(O)/libattnd.a
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(CLIENT_LIBS) -ljansson

$(O)/attnd-runner: $(EXAMPLE_OBJS) $(O)/libattnd.a
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(CLIENT_LIBS) $(RUNNER_LIBS)

-include $(shell find $(O) -name '*.d' 2>/dev/null)
