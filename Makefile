# Twinkle. Knobs: CC, CFLAGS, CUDA=0, PREFIX, DESTDIR, B (the build folder).
B ?= build
PREFIX ?= /usr/local
CC ?= gcc
OPT ?= -O2 -g
WARN = -Wall -Wextra -Wshadow -Wvla -Wno-unused-parameter -Wstrict-prototypes
VERSION = 0.1.0
CPPFLAGS += -Ilib -D_GNU_SOURCE -include base/banned.h -DTW_VERSION='"$(VERSION)"' -DTW_PREFIX='"$(PREFIX)"'
ALL_CFLAGS = -std=c11 $(OPT) $(WARN) -ffp-contract=off -fno-math-errno -pthread -fPIC $(CFLAGS)
LIBS = -lpcre2-8 -lutf8proc -larchive -lcurl -lzstd -ldl -lm -pthread

LIB_SRC := $(wildcard lib/*/*.c lib/*/*/*.c)
CMD_SRC := $(wildcard cmd/tw-*.c)
UNIT_SRC := $(wildcard tests/unit/*.c)
LIB_OBJ := $(LIB_SRC:%.c=$B/%.o)
CMDS := $(CMD_SRC:cmd/%.c=$B/bin/%)
UNITS := $(UNIT_SRC:tests/unit/%.c=$B/tests/%)

all: $(CMDS)
$B/libtw.a: $(LIB_OBJ)
	@rm -f $@
	ar rcs $@ $^
$B/bin/%: $B/cmd/%.o $B/libtw.a
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)
$B/tests/%: $B/tests/unit/%.o $B/libtw.a
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)
$B/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<
-include $(shell find $B -name '*.d' 2>/dev/null)

units: $(UNITS)
clean:
	rm -rf $B
.PHONY: all units clean
.SECONDARY:
