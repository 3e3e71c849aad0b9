# Twinkle. `make` builds the commands into build/bin; `make demo` shows them at work.
#
# Targets
#   all         the commands (and build/lib/libtw-cuda.so where there is a CUDA compiler)
#   demo        examples/demo.sh: teaches the built-in model a new name, then sums from rewards; a minute or two
#   test        unit programs and tests/t*.sh;  T='t0003*' picks some
#   test-long   tests/t*.long.sh;  test-gpu: tests/t*.gpu.sh and the unit programs on the GPU
#   sanitize    compute-sanitizer's tools over the kernels, on a GPU;  TOOLS='memcheck racecheck' picks some
#   asan        builds all of it with the address and undefined-behaviour sanitizers, then `test`
#   tsan        the same with the thread sanitizer, for what has threads
#   fuzz        tests/fuzz/*.c with clang's libFuzzer, FUZZ_S seconds each;  T=json picks one
#   fuzz-cover  the lines of each parser that its committed inputs reach
#   bench       builds tests/bench/*.c, runs tests/bench/*.sh
#   man         writes the OPTIONS of man/tw-*.1 again, from the commands' own tables
#   install     into DESTDIR and PREFIX;  uninstall takes it away again
#   deps        the Debian packages below, installed (as root) or named
#   clean       removes the build folder
#
# Knobs
B ?= build
PREFIX ?= /usr/local
DESTDIR ?=
CC ?= gcc
OPT ?= -O2 -g
CFLAGS ?=
# The CUDA compiler, and 0 to leave its part out.
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA ?= $(if $(NVCC),1,0)
CUDA_LIBDIR = $(wildcard $(dir $(NVCC))../lib64)
CUDA_ARCH ?= 80 90a
# Tests at once, seconds a test may take, seconds a fuzzer runs.
JOBS ?= 2
TEST_S ?= 900
FUZZ_S ?= 600
T ?=
# V=1 shows the commands in full.
V ?=

VERSION = 0.1.0
# What a build needs, as Debian names it, and a header by which each is known to be there.
PACKAGES = git make gcc libc6-dev libcurl4-openssl-dev libarchive-dev libzstd-dev libpcre2-dev \
	libutf8proc-dev libjsmn-dev libmicrohttpd-dev libsqlite3-dev
HEADERS = stdio.h curl/curl.h archive.h zstd.h pcre2.h utf8proc.h jsmn.h microhttpd.h sqlite3.h

WARN = -Wall -Wextra -Wshadow -Wvla -Wno-unused-parameter -Wstrict-prototypes
ALL_CPPFLAGS = -Ilib -D_GNU_SOURCE -DTW_VERSION='"$(VERSION)"' -include base/banned.h $(CPPFLAGS)
ALL_CFLAGS = -std=c11 $(OPT) $(WARN) -ffp-contract=off -fno-math-errno -pthread -fPIC $(CFLAGS)
LIBS = -Wl,--as-needed -lmicrohttpd -lsqlite3 -lpcre2-8 -lutf8proc -larchive -lcurl \
	-lzstd -ldl -lm -pthread
# What is made, in short; nothing under make -s.
say = $(if $V,,$(if $(findstring s,$(firstword -$(MAKEFLAGS))),@,@echo '  $1	$@';))
NVCCFLAGS = -O3 -std=c++17 -Ilib -Ikernels -Xcompiler -fPIC,-Wall,-fvisibility=hidden \
	$(foreach a,$(CUDA_ARCH),-gencode arch=compute_$a,code=sm_$a)

# In tests/unit: ref*.c and help_*.c are linked into the programs that call them, inject.c is
# preloaded into commands, golden-*.c are programs that need cases to run on; each other file is a
# test program.
LIB_SRC := $(wildcard lib/*/*.c lib/*/*/*.c)
CMD_SRC := $(wildcard cmd/tw-*.c)
CU_SRC := $(wildcard kernels/*.cu)
HELP_SRC := $(wildcard tests/unit/ref*.c tests/unit/help_*.c)
GOLDEN_SRC := $(wildcard tests/unit/golden-*.c)
UNIT_SRC := $(filter-out $(HELP_SRC) $(GOLDEN_SRC) tests/unit/inject.c,$(wildcard tests/unit/*.c))
BENCH_SRC := $(wildcard tests/bench/*.c)
EXAMPLE_SRC := $(wildcard examples/*.c)
FUZZ_SRC := $(wildcard tests/fuzz/*.c)
SH_ALL := $(sort $(wildcard tests/t[0-9]*.sh))
SH_LONG := $(filter %.long.sh,$(SH_ALL))
SH_GPU := $(filter %.gpu.sh,$(SH_ALL))
SH_TEST := $(filter-out $(SH_LONG) $(SH_GPU),$(SH_ALL))

CMDS := $(CMD_SRC:cmd/%.c=$B/bin/%)
UNITS := $(UNIT_SRC:tests/unit/%.c=$B/tests/%)
GOLDEN := $(GOLDEN_SRC:tests/unit/%.c=$B/tests/%)
BENCH := $(BENCH_SRC:tests/bench/%.c=$B/bench/%)
EXAMPLES := $(EXAMPLE_SRC:%.c=$B/%)
FUZZ := $(FUZZ_SRC:tests/fuzz/%.c=$B/fuzz/%)
INJECT := $(patsubst tests/unit/%.c,$B/tests/%.so,$(wildcard tests/unit/inject.c))
CUDA_LIB := $(if $(filter-out 0,$(CUDA)),$(if $(CU_SRC),$B/lib/libtw-cuda.so))

all: $(CMDS) $(CUDA_LIB)
units: $(UNITS) $(GOLDEN) $(INJECT) $(EXAMPLES)

$B/libtw.a: $(LIB_SRC:%.c=$B/%.o)
	@rm -f $@
	$(call say,AR)ar rcs $@ $^
$B/libtest.a: $(HELP_SRC:%.c=$B/%.o)
	@rm -f $@
	$(call say,AR)ar rcs $@ $^
$B/bin/%: $B/cmd/%.o $B/libtw.a
	@mkdir -p $(@D)
	$(call say,LINK)$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)
$B/tests/%.so: tests/unit/%.c
	@mkdir -p $(@D)
	$(call say,LINK)$(CC) -std=c11 -O1 -D_GNU_SOURCE $(WARN) -fPIC -shared -o $@ $< -ldl
$B/tests/%: $B/tests/unit/%.o $B/libtest.a $B/libtw.a
	@mkdir -p $(@D)
	$(call say,LINK)$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)
# As its comment says that users build it: without ours.
$B/examples/%: examples/%.c
	@mkdir -p $(@D)
	$(call say,LINK)$(CC) -O2 $(WARN) -o $@ $< -lm
$B/bench/%: $B/tests/bench/%.o $B/libtest.a $B/libtw.a
	@mkdir -p $(@D)
	$(call say,LINK)$(CC) $(ALL_CFLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)
$B/fuzz/%: $B/tests/fuzz/%.o $B/libtw.a
	@mkdir -p $(@D)
	$(call say,LINK)$(CC) $(ALL_CFLAGS) -fsanitize=fuzzer $(LDFLAGS) -o $@ $^ $(LIBS)
# A source that needs flags of its own has them in FLAGS_path/of/file.c.
$B/%.o: %.c $B/flags | $B/deps
	@mkdir -p $(@D)
	$(call say,CC)$(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS) $(FLAGS_$<) -MMD -MP -c -o $@ $<
# The products' kernels are inlined many times over: with the undefined-behaviour sanitizer each of
# these files takes minutes, with the address sanitizer alone seconds.
KERNELS := $(wildcard lib/nn/cpu/isa_*.c)
$(foreach f,$(KERNELS),$(eval FLAGS_$f += $(if $(findstring sanitize,$(OPT)),-fno-sanitize=undefined)))
# It goes through all characters whenever a tokenizer is opened, which fuzzers do all the time.
FLAGS_lib/data/tok_uni.c = $(if $(findstring fuzzer,$(OPT)),-O2 -fno-sanitize=all)
$B/kernels/%.o: kernels/%.cu $(wildcard kernels/*.h kernels/*.cuh lib/nn/*.h lib/base/err.h)
	@mkdir -p $(@D)
	$(call say,NVCC)$(NVCC) $(NVCCFLAGS) -c -o $@ $<
$B/lib/libtw-cuda.so: $(CU_SRC:%.cu=$B/%.o) $B/lib/base/err.o
	@mkdir -p $(@D)
	$(call say,LINK)$(NVCC) -shared -o $@ $^ -lcublasLt $(addprefix -Xlinker -rpath=,$(CUDA_LIBDIR))
# Attention alone, beside plain kernels; attn-plain does what GPUs before Hopper would.
CUDA_ATTN := $(patsubst %.cu,$B/%.o,$(wildcard kernels/attn*.cu))
CUDA_TEST := tests/cuda/attn.cu tests/cuda/attn_time.cu tests/cuda/stub.cu
$B/cuda/attn: $(CUDA_TEST) $(CUDA_ATTN)
	@mkdir -p $(@D)
	$(call say,NVCC)$(NVCC) $(NVCCFLAGS) -o $@ $^
$B/cuda/attn-plain: $(CUDA_TEST) $(filter-out %wg.o %wg_bwd.o %wg_dq.o,$(CUDA_ATTN))
	@mkdir -p $(@D)
	$(call say,NVCC)$(NVCC) $(NVCCFLAGS) -DNO_WG -o $@ $^
-include $(patsubst %.c,$B/%.d,$(LIB_SRC) $(CMD_SRC) $(HELP_SRC) $(GOLDEN_SRC) $(UNIT_SRC) $(BENCH_SRC) $(FUZZ_SRC))

# Changes when the compiler or its flags do, so that everything is built again.
FLAGS := $(strip $(CC) $(ALL_CPPFLAGS) $(ALL_CFLAGS))
ifneq ($(FLAGS),$(strip $(shell cat $B/flags 2>/dev/null)))
$B/flags: FORCE
endif
$B/flags:
	@mkdir -p $B
	@printf '%s\n' '$(subst ','\'',$(FLAGS))' >$@

# Once a build folder: what is missing is installed where we may, or named.
$B/deps:
	@mkdir -p $B
	@$(MAKE) -s --no-print-directory deps
	@touch $@
deps:
	@if for h in $(HEADERS); do echo "#include <$$h>"; done | \
	    sed 's/.*pcre2.h/#define PCRE2_CODE_UNIT_WIDTH 8\n&/' | \
	    $(CC) -E -o /dev/null - 2>/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo 'installing: $(PACKAGES)'; \
	    apt-get update -q && DEBIAN_FRONTEND=noninteractive \
	        apt-get install -y -q --no-install-recommends $(PACKAGES); \
	else \
	    echo 'Some packages are missing. Run this, then make again:' >&2; \
	    echo '    sudo apt-get install $(PACKAGES)' >&2; exit 1; \
	fi

demo: all
	@bash examples/demo.sh

# $(call run,scripts and programs); $(call pick,those) takes what T names of them.
run = TW_BUILD='$(abspath $B)' TEST_S=$(TEST_S) JOBS=$(JOBS) \
	sh tests/run.sh $1
pick = $(if $(T),$(foreach t,$1,$(if $(filter $(subst *,%,$(T)),$(notdir $t) \
	$(basename $(notdir $t))),$t)),$1)
test: all units
	@$(call run,$(call pick,$(UNITS) $(SH_TEST)))
test-long: all units
	@$(call run,$(call pick,$(SH_LONG)))
# One at a time: some look at what the driver says is taken, by whomever.
test-gpu: JOBS = 1
test-gpu: all units $B/cuda/attn $B/cuda/attn-plain
	@$(call run,$(call pick,$(UNITS) $B/cuda/attn $B/cuda/attn-plain $(SH_GPU)))
sanitize: all units $B/bench/mixed $B/bench/decode
	@T='$(T)' bash tests/cuda/sanitize.sh '$(abspath $B)' $(TOOLS)

SAN = -O1 -g -fsanitize=address,undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined
asan:
	@$(MAKE) --no-print-directory B=build-asan OPT='$(SAN)' CUDA=0 TEST_S=2700 test

# Without random addresses, for which its shadow has no place; memory is not counted as the tests of plans count it.
TSAN_T = engine exact pool publish sampler schedule serve_* http log t5* t6001* t6003* t7*
tsan:
	@setarch -R $(MAKE) --no-print-directory B=build-tsan OPT='-O1 -g -fsanitize=thread' CUDA=0 TEST_S=2700 \
		T='$(or $(T),$(TSAN_T))' test

FUZZ_SAN = -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
fuzz:
	@$(MAKE) --no-print-directory B=build-fuzz CC=clang OPT='$(FUZZ_SAN)' CUDA=0 \
	    CPPFLAGS=-DTOK_CACHE_BITS=8 fuzz-run
fuzz-run: $(FUZZ)
	@for f in $(call pick,$(FUZZ)); do n=$${f##*/}; mkdir -p $B/corpus/$$n $B/crash; \
	    echo "fuzz $$n for $(FUZZ_S) s"; \
	    $$f -max_total_time=$(FUZZ_S) -timeout=20 -rss_limit_mb=3000 -print_final_stats=1 \
	        -artifact_prefix=$B/crash/$$n- $B/corpus/$$n tests/fuzz/corpus/$$n 2>$B/$$n.log || \
        { tail -n 60 $B/$$n.log; exit 1; }; \
        sed -n 's/^stat::/    /p; /DONE/p' $B/$$n.log; \
	done

COVER = -O1 -g -fsanitize=fuzzer-no-link -fprofile-instr-generate -fcoverage-mapping
fuzz-cover:
	@$(MAKE) --no-print-directory B=build-cover CC=clang OPT='$(COVER)' CUDA=0 fuzz-cover-run
fuzz-cover-run: $(FUZZ)
	@sh tests/fuzz/cover.sh $B $(call pick,$(FUZZ))

bench: all $(BENCH)
	@for s in $(sort $(wildcard tests/bench/*.sh)); do TW_BUILD='$(abspath $B)' sh $$s || exit 1; done

man: all
	@sh man/options.sh $B/bin

INSTALL_DIRS = bin share/twinkle share/man/man1 share/man/man5 share/man/man7 lib/twinkle \
	share/bash-completion/completions share/zsh/site-functions share/fish/vendor_completions.d
D = $(DESTDIR)$(PREFIX)
install: all
	@mkdir -p $(addprefix $D/,$(INSTALL_DIRS))
	cp $(CMDS) $D/bin/
	$(if $(CUDA_LIB),cp $(CUDA_LIB) $D/lib/twinkle/)
	$(if $(wildcard share/*),cp -R share/. $D/share/twinkle/)
	for s in 1 5 7; do for f in man/*.$$s; do [ ! -f $$f ] || cp $$f $D/share/man/man$$s/; done; done
	cp completions/_tw $D/share/zsh/site-functions/
	for c in $(notdir $(CMDS)); do \
	    cp completions/tw.bash $D/share/bash-completion/completions/$$c; \
	    cp completions/tw.fish $D/share/fish/vendor_completions.d/$$c.fish; done
uninstall:
	rm -f $(addprefix $D/bin/,$(notdir $(CMDS))) $D/share/zsh/site-functions/_tw
	rm -f $(foreach c,$(notdir $(CMDS)),$D/share/bash-completion/completions/$c \
	    $D/share/fish/vendor_completions.d/$c.fish)
	rm -f $(foreach f,$(wildcard man/*.[157]),$D/share/man/man$(subst .,,$(suffix $f))/$(notdir $f))
	rm -rf $D/share/twinkle $D/lib/twinkle

clean:
	rm -rf $B
FORCE:
.PHONY: all units demo test test-long test-gpu sanitize asan tsan fuzz fuzz-run fuzz-cover fuzz-cover-run bench \
	man install uninstall deps clean FORCE
# Objects are kept, but one that is missing is made: .SECONDARY would take it for not needed.
.PRECIOUS: $B/%.o
