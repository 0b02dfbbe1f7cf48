# SPDX-License-Identifier: Apache-2.0
#
# In: the sources. Out: everything in build/, or in O=dir (absolute or not). Next: tests/tests.mk.
#
# make            build daemon, library and tools
# make deps       install the Debian packages that are missing (every other entry does it, too)
# make demo       the main job: three runners share one cache
# make check      the test suite (make check-long: what takes longer)
# make soak       ten minutes of everything at once (SOAK_SECONDS=); make fuzz (FUZZ_SECONDS=60 each)
# make check-python   the Python package with torch and Transformers, in its own virtual environment
# make bench-python   what Python costs a job, and what a shared prompt saves
# make man        the manual pages and the shell completion, from docs/man and the tables in the code
# make deb        Debian packages in build/deb (DEB_ARCH=riscv64: cross-built); make check-deb tries them
# make install    DESTDIR= PREFIX= (RUNNER=1: the example runner, too); make uninstall
# make format     clang-format-19 over the tree; make format-check only looks
# make clean
#
# V=1 shows commands; WERROR=1; SAN=address,undefined or SAN=thread; CC=clang-19.

O ?= build
override O := $(patsubst %/,%,$(O))
ifneq ($(filter $(abspath $(O))/%,$(CURDIR)/),)
$(error O=$(O) holds the sources)
endif

PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
SBINDIR ?= $(PREFIX)/sbin
INCLUDEDIR ?= $(PREFIX)/include
LIBDIR ?= $(PREFIX)/lib
SYSCONFDIR ?= /etc
UNITDIR ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
TMPFILESDIR ?= $(PREFIX)/lib/tmpfiles.d
LIBEXECDIR ?= $(PREFIX)/libexec
DOCDIR ?= $(PREFIX)/share/doc/attnd
MANDIR ?= $(PREFIX)/share/man
COMPLETIONDIR ?= $(PREFIX)/share/bash-completion/completions

VERSION := 0.1.0
SOMAJOR := 0

ifeq ($(origin CC),default)
CC := gcc
endif
AR ?= ar
INSTALL ?= install
CLANG_FORMAT ?= clang-format-19

# Ours are added with override, so that user flags survive.
CFLAGS ?= -O2 -g
ifneq ($(SAN),)
override CFLAGS += -DATTND_POISON=1 -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined
override LDFLAGS += -fsanitize=$(SAN)
# Fences are right without its help: the tests of rings and doorbells run under it all the same.
ifeq ($(SAN)$(findstring clang,$(CC)),thread)
override CFLAGS += -Wno-tsan
endif
endif
ifeq ($(WERROR),1)
override CFLAGS += -Werror
endif
override CPPFLAGS += -D_GNU_SOURCE -DATTND_VERSION='"$(VERSION)"'
override CFLAGS += -std=c11 -Wall -Wextra -Wconversion -fPIC -fvisibility=hidden -pthread
override LDFLAGS += -pthread
# Before any target's own flags, which a prerequisite would inherit.
build_flags := $(CC) $(CPPFLAGS) $(CFLAGS) / $(LDFLAGS)
# One object alone knows where the daemon is installed.
CFLAGS_client_private := -DATTND_SBINDIR='"$(SBINDIR)"'

# What the compiler builds for; kernels.mk picks its files by it. A machine without a compiler is about to get its own.
ARCH := $(or $(firstword $(subst -, ,$(shell $(CC) $(CFLAGS) -dumpmachine 2>/dev/null))),$(shell uname -m))

ifeq ($(V),1)
Q :=
say =
else
Q := @
say = @printf '  %-8s %s\n' '$(1)' '$(2)';
endif

comma := ,
objs = $(patsubst %.c,$(O)/%.o,$(filter-out $(2),$(wildcard $(1)/*.c)))
SHM_OBJS := $(call objs,shm)
KERNELS_OBJS := $(call objs,kernels)
DAEMON_OBJS := $(call objs,daemon,daemon/main.c)
CLIENT_OBJS := $(call objs,client,client/attnctl.c)
CTL_OBJS := $(O)/client/attnctl.o $(call objs,client/ctl)
EXAMPLE_OBJS := $(call objs,client/examples)
CFLAGS_client_examples_attention_attnd := -Iclient # as with the installed header

# Debian 12 and 13 call it differently; asked when it is needed, since `make deps` may have to install it.
MSGPACK ?= $(shell pkg-config --libs-only-l msgpack-c 2>/dev/null || echo -lmsgpackc)
DAEMON_LIBS = -luring -lnuma -lhugetlbfs -lsystemd -lsodium -linih -ljansson -lmicrohttpd -lzmq $(MSGPACK) -lm
CLIENT_LIBS := -lsodium
CTL_LIBS = -ljansson -lzmq $(MSGPACK) -lncursesw -ltinfo -lm
RUNNER_LIBS := -lsodium -lopenblas -ljansson -lm

PROGRAMS := $(O)/attnd $(O)/attnctl $(O)/attnd-runner
SO := libattnd.so.$(VERSION)
LIBS := $(O)/$(SO) $(O)/libattnd.a

.PHONY: all man deb deps demo tests check check-long install uninstall clean format format-check FORCE
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all
all: $(PROGRAMS) $(LIBS) $(O)/attnd.pc man

include kernels/kernels.mk
include tests/tests.mk

# Every object waits for the packages, but is not made again because of them.
# A package's build has them already: DEPS=none.
DEPS ?= build
deps:
	@[ $(DEPS) = none ] || .ci/deps $(DEPS)

# Each changes only when what it holds does; whoever is made with that depends on it.
$(O)/flags: export holds := $(build_flags)
$(O)/paths: export holds := $(PREFIX) $(SBINDIR) $(LIBDIR) $(INCLUDEDIR)
$(O)/flags $(O)/paths: FORCE | deps
	@mkdir -p $(@D)
	@printf '%s\n' "$$holds" | cmp -s - $@ || printf '%s\n' "$$holds" >$@

$(O)/%.o: %.c $(O)/flags | deps
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(CFLAGS_$(subst /,_,$*)) -MMD -MP -c -o $@ $<

$(KERNELS_OBJS): kernels/kernels.mk
$(O)/client/private.o: $(O)/paths

$(O)/libdaemon.a: $(DAEMON_OBJS) $(SHM_OBJS) $(KERNELS_OBJS)
$(O)/libattnd.a: $(CLIENT_OBJS) $(SHM_OBJS)
$(O)/%.a: $(O)/flags
	$(call say,AR,$@)
	$(Q)rm -f $@; $(AR) rcs $@ $(filter %.o,$^)

link = $(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o %.a,$^)

$(O)/$(SO): $(CLIENT_OBJS) $(SHM_OBJS) client/libattnd.map $(O)/flags
	$(call say,LD,$@)
	$(link) -shared $(if $(SAN),,-Wl$(comma)-z$(comma)defs) -Wl,-soname,libattnd.so.$(SOMAJOR) -Wl,--version-script=client/libattnd.map $(CLIENT_LIBS)
	$(Q)ln -sf $(SO) $(O)/libattnd.so.$(SOMAJOR); ln -sf libattnd.so.$(SOMAJOR) $(O)/libattnd.so

$(O)/attnd: $(O)/daemon/main.o $(O)/libdaemon.a $(O)/flags
	$(call say,LD,$@)
	$(link) $(DAEMON_LIBS)

$(O)/attnctl: $(CTL_OBJS) $(O)/libattnd.a $(O)/flags
	$(call say,LD,$@)
	$(link) $(CLIENT_LIBS) $(CTL_LIBS)

$(O)/attnd-runner: $(EXAMPLE_OBJS) $(O)/libattnd.a $(O)/flags
	$(call say,LD,$@)
	$(link) $(CLIENT_LIBS) $(RUNNER_LIBS)

$(O)/attnd.pc: client/attnd.pc.in $(O)/paths
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' \
	  -e 's|@VERSION@|$(VERSION)|' $< >$@

demo: all
	$(Q)ATTND_DAEMON='$(abspath $(O))/attnd' client/examples/demo.sh '$(abspath $(O))'

UNITS := $(wildcard systemd/*.service systemd/*.socket)
SYSUSERS := $(wildcard systemd/*.sysusers)
TMPFILES := $(wildcard systemd/*.tmpfiles)
CONFIGS := $(wildcard systemd/*.conf)
DOCS := README.md $(wildcard docs/*.md)

PAGES := attnctl.1 attnd-bench.1 libattnd.3 attnd.conf.5 attnd.7 attnd.8
MAN := $(addprefix $(O)/man/,$(PAGES) attnctl.bash)
man: $(MAN)
$(O)/man/%: docs/man/%.in docs/man/generate daemon/config.h client/ctl/commands.h client/attnd.h | deps
	@mkdir -p $(@D)
	$(call say,MAN,$@)
	$(Q)docs/man/generate '$(CC)' $(VERSION) $< >$@

install: all man
	$(Q)set -e; for f in $(PAGES); do $(INSTALL) -D -m 644 $(O)/man/$$f $(DESTDIR)$(MANDIR)/man$${f##*.}/$$f; done
	$(Q)$(INSTALL) -D -m 644 $(O)/man/attnctl.bash $(DESTDIR)$(COMPLETIONDIR)/attnctl
	$(Q)ln -sf attnctl $(DESTDIR)$(COMPLETIONDIR)/attnd
	$(Q)$(INSTALL) -D -m 755 $(O)/attnd $(DESTDIR)$(SBINDIR)/attnd
	$(Q)$(INSTALL) -D -m 755 $(O)/attnctl $(DESTDIR)$(BINDIR)/attnctl
ifeq ($(RUNNER),1)
	$(Q)$(INSTALL) -D -m 755 $(O)/attnd-runner $(DESTDIR)$(BINDIR)/attnd-runner
endif
	$(Q)$(INSTALL) -D -m 755 $(O)/$(SO) $(DESTDIR)$(LIBDIR)/$(SO)
	$(Q)ln -sf $(SO) $(DESTDIR)$(LIBDIR)/libattnd.so.$(SOMAJOR)
	$(Q)ln -sf libattnd.so.$(SOMAJOR) $(DESTDIR)$(LIBDIR)/libattnd.so
	$(Q)$(INSTALL) -D -m 644 $(O)/libattnd.a $(DESTDIR)$(LIBDIR)/libattnd.a
	$(Q)$(INSTALL) -D -m 644 client/attnd.h $(DESTDIR)$(INCLUDEDIR)/attnd.h
	$(Q)$(INSTALL) -D -m 644 $(O)/attnd.pc $(DESTDIR)$(LIBDIR)/pkgconfig/attnd.pc
	$(Q)set -e; for f in $(UNITS); do mkdir -p $(DESTDIR)$(UNITDIR); \
	  sed -e 's|@SBINDIR@|$(SBINDIR)|g' -e 's|@LIBEXECDIR@|$(LIBEXECDIR)|g' -e 's|@DOCDIR@|$(DOCDIR)|g' $$f >$(DESTDIR)$(UNITDIR)/$${f##*/}; \
	  chmod 644 $(DESTDIR)$(UNITDIR)/$${f##*/}; done
	$(Q)set -e; for f in $(SYSUSERS); do b=$${f##*/}; \
	  $(INSTALL) -D -m 644 $$f $(DESTDIR)$(SYSUSERSDIR)/$${b%.sysusers}.conf; done
	$(Q)set -e; for f in $(TMPFILES); do b=$${f##*/}; \
	  $(INSTALL) -D -m 644 $$f $(DESTDIR)$(TMPFILESDIR)/$${b%.tmpfiles}.conf; done
	$(Q)$(INSTALL) -D -m 755 systemd/attnd-hugepages $(DESTDIR)$(LIBEXECDIR)/attnd-hugepages
	$(Q)$(INSTALL) -d $(DESTDIR)$(DOCDIR) && $(INSTALL) -m 644 $(DOCS) $(DESTDIR)$(DOCDIR)
	$(Q)set -e; for f in $(CONFIGS); do to=$(DESTDIR)$(SYSCONFDIR)/attnd/$${f##*/}; \
	  [ -e $$to ] || $(INSTALL) -D -m 644 $$f $$to; done

# What is in /etc stays: somebody may have changed it.
uninstall:
	$(Q)rm -f $(DESTDIR)$(SBINDIR)/attnd $(DESTDIR)$(BINDIR)/attnctl $(DESTDIR)$(BINDIR)/attnd-runner \
	  $(addprefix $(DESTDIR)$(LIBDIR)/,$(SO) libattnd.so.$(SOMAJOR) libattnd.so libattnd.a pkgconfig/attnd.pc) \
	  $(DESTDIR)$(INCLUDEDIR)/attnd.h $(addprefix $(DESTDIR)$(COMPLETIONDIR)/,attnctl attnd) \
	  $(foreach f,$(PAGES),$(DESTDIR)$(MANDIR)/man$(subst .,,$(suffix $(f)))/$(f)) \
	  $(addprefix $(DESTDIR)$(UNITDIR)/,$(notdir $(UNITS))) \
	  $(patsubst %.sysusers,$(DESTDIR)$(SYSUSERSDIR)/%.conf,$(notdir $(SYSUSERS))) \
	  $(patsubst %.tmpfiles,$(DESTDIR)$(TMPFILESDIR)/%.conf,$(notdir $(TMPFILES))) \
	  $(DESTDIR)$(LIBEXECDIR)/attnd-hugepages $(addprefix $(DESTDIR)$(DOCDIR)/,$(notdir $(DOCS)))

# From a copy of what git has, so that nothing of a build comes along.
deb:
	$(Q)debian/build '$(abspath $(O))/deb'

# Only what was made: O may be a directory that holds other things.
clean:
	$(Q)rm -rf $(addprefix $(O)/,shm kernels daemon client tests man deb deb-riscv64 flags paths attnd.pc libdaemon.a libattnd.a libattnd.so*) $(PROGRAMS)
	$(Q)rmdir $(O) 2>/dev/null || true

sources = $$(find client daemon kernels proto shm tests -name '*.[ch]')
format:
	$(Q)$(CLANG_FORMAT) -i $(sources)
format-check:
	$(Q)$(CLANG_FORMAT) --dry-run -Werror $(sources)

-include $(wildcard $(O)/*/*.d $(O)/*/*/*.d $(O)/*/*/*/*.d)
