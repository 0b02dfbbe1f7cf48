# SPDX-License-Identifier: Apache-2.0
#
# A daemon that ends, and the next one that takes its cache over.
restart := $(addprefix $(O)/tests/,integration/harness.o integration/toy.o restart/kept.o restart/prompts.o)
$(eval $(call cmocka_test,tests/restart/test_restart,$(restart)))
$(eval $(call cmocka_test,tests/restart/test_check,$(restart) $(O)/tests/daemon/world.o))

# A daemon with kill points: what has some is compiled again with them, and stands in for the library's.
kill_parts := $(patsubst daemon/%.c,$(O)/tests/restart/kill/%.o,$(shell grep -l KILL_POINT daemon/*.c))
$(kill_parts): $(O)/tests/restart/kill/%.o: daemon/%.c $(O)/flags | deps
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CPPFLAGS) -DATTND_KILL_POINTS $(CFLAGS) -MMD -MP -c -o $@ $<
$(O)/tests/restart/killpoint.o: override CPPFLAGS += -DATTND_KILL_POINTS
$(O)/tests/restart/attnd-kill: $(O)/daemon/main.o $(kill_parts) $(O)/tests/restart/killpoint.o $(O)/libdaemon.a $(O)/flags
	$(call say,LD,$@)
	$(link) $(DAEMON_LIBS)
TEST_PROGRAMS += $(O)/tests/restart/attnd-kill
$(eval $(call cmocka_test,tests/restart/test_kill,$(restart)))
CHECK_TESTS += tests/restart/full.sh
CHECK_LONG_TESTS += $(addprefix $(O)/tests/restart/,test_restart test_check test_kill)
