# SPDX-License-Identifier: Apache-2.0
#
# Golden vectors: $(O)/run-vectors and the test that runs it over the small set of data/ and, if
# ATTND_VECTORS names one, over a larger set; check-long: every ISA with every size of blocks and chunks.

VECTORS_OBJS := $(O)/tests/vectors/run-vectors.o $(O)/tests/vectors/feed.o $(O)/tests/vectors/case.o

$(O)/run-vectors: $(VECTORS_OBJS) $(O)/libattnd.a $(O)/flags
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o %.a,$^) $(CLIENT_LIBS) -ljansson -lm

TEST_PROGRAMS += $(O)/run-vectors
CHECK_TESTS += tests/vectors/test_vectors.sh
CHECK_LONG_TESTS += tests/vectors/test_vectors.sh
