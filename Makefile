# SPDX-License-Identifier: MIT
#
# Builds build/libfastckpt.so (what a job preloads) and build/fastckpt (engine and command), and runs what checks them.
# There is nothing to install: the two files work from wherever they lie side by side.
#
#   make                  both files                      make unit        unit tests only
#   make check [T=word]   everything, or tests with word  make tidy        rules of style and structure
#   make check-asan       with sanitizers (build-asan)    make bench       build/bench.json
#   make check-long       hours: KILLS= CUTS= SEED= T=    make demo        a save with and without, side by side
#                         sums in build/long.json
#   make check-python     CPython's own tests; AS=root    make clients    the newest frameworks, into build/venv
#   make BREAK=n ...      a canary, in build-break-n (n: 1 no sync, 2 no fence, 3 torn names, 4 to 6 crashes, 7 break
#                         points, 8 a wrong checksum, 9 names are given only to who waits, 10 to 13 device copies,
#                         16 to 18: what a client holds is not seen, comes over others' bytes, is seen in the middle
#                         of its call, 14 break points that dawdle, 19 to 21 adopted memory, 22 to 25 late copies)

CC      ?= gcc
CXX     ?= g++
BREAK   ?=
ASAN    ?=
T       ?=
URING   ?= /usr/lib/$(shell $(CC) -print-multiarch)/liburing.a
DEFLATE ?= /usr/lib/$(shell $(CC) -print-multiarch)/libdeflate.a
B       := build$(if $(ASAN),-asan)$(if $(BREAK),-break-$(BREAK))

CFLAGS  ?= -O2 -g
CANARY  := $(if $(BREAK),-DFASTCKPT_BREAK=$(BREAK))
FLAGS   := -std=gnu11 $(CFLAGS) -Wall -Wextra -Werror -D_GNU_SOURCE -MMD -MP -I. $(CANARY)
comma   := ,
SAN     := $(if $(ASAN),-fsanitize=address$(comma)undefined -fno-omit-frame-pointer -fno-sanitize-recover=undefined)

# The core modules that the preloaded library needs. The rest of core is the engine's.
SHIM_CORE := log os fs config path protocol runtime staging
# Modules of the shim without hooks or process state: unit tests may link them.
SHIM_PURE := policy extents shared listing callsite_text thread workers crc elf maps

CORE_SRC  := $(wildcard core/*.c)
SHIM_SRC  := $(wildcard shim/*.c)
CORE_OBJ  := $(CORE_SRC:%.c=$(B)/obj/%.o)
SHIM_OBJ  := $(SHIM_SRC:%.c=$(B)/pic/%.o) $(patsubst %,$(B)/pic/core/%.o,$(SHIM_CORE))
PURE_OBJ  := $(patsubst %.c,$(B)/obj/%.o,$(wildcard $(SHIM_PURE:%=shim/%.c)))
EXPORTS   := $(wildcard shim/exports.map)

LIB     := $(if $(SHIM_SRC),$(B)/libfastckpt.so)
BIN     := $(if $(wildcard core/main.c),$(B)/fastckpt)
# Where the headers of CUDA 13 are. Without them there is no simulated CUDA runtime, and what needs it is skipped.
CUDA    ?= $(shell grep -lsE 'CUDART_VERSION +13' /usr/local/cuda/include/cuda_runtime_api.h \
                /usr/include/cuda_runtime_api.h | head -n 1 | xargs -r dirname)
SIMCUDA := $(if $(CUDA),$(B)/simcuda/libcudart.so.13 $(B)/simcuda/libcuda.so.1)
VICTIMS := $(patsubst tests/victims/%.c,$(B)/victims/%,$(filter-out %_check.c $(if $(CUDA),,tests/victims/cuda_%.c),\
                                                                    $(wildcard tests/victims/*.c))) \
           $(patsubst tests/victims/%.cc,$(B)/victims/%,$(wildcard tests/victims/*.cc))
UNIT    := $(patsubst tests/unit/%.c,$(B)/unit/%,$(wildcard tests/unit/test_*.c))

.PHONY: all built tests check check-asan check-long check-python clients demo bench tidy unit clean FORCE
.DELETE_ON_ERROR:
.SECONDARY:

all:
	@scripts/setup build
	@$(MAKE) --no-print-directory built

built: $(LIB) $(BIN)

tests: built $(VICTIMS) $(UNIT) $(SIMCUDA)

check:
	@scripts/setup build check
	@$(MAKE) --no-print-directory tests
	tests/run --build $(B) $(T)

check-asan:
	@scripts/setup build check
	@$(MAKE) --no-print-directory ASAN=1 tests
	ASAN_OPTIONS=detect_leaks=0:$$ASAN_OPTIONS tests/run --build build-asan $(T)

check-long:
	@scripts/setup build check
	@$(MAKE) --no-print-directory tests
	KILLS=$(KILLS) CUTS=$(CUTS) SEED=$(SEED) tests/run --build $(B) --long $(T)

check-python:
	@scripts/setup build check-python
	@$(MAKE) --no-print-directory built
	scripts/check-python $(B) $(T)

clients:
	@scripts/setup clients
	scripts/clients build

demo:
	@scripts/setup build demo
	@$(MAKE) --no-print-directory built
	scripts/demo $(B)

bench:
	@scripts/setup build bench
	@scripts/setup picture 2>/dev/null || true
	@$(MAKE) --no-print-directory built $(filter $(B)/victims/bench_% $(B)/victims/rotate,$(VICTIMS))
	scripts/bench $(B)

tidy:
	scripts/tidy $(B)

unit:
	@$(MAKE) --no-print-directory $(UNIT)
	tests/run --build $(B) --unit $(T)

clean:
	rm -rf build build-asan build-break-*

# Everything is rebuilt when the flags change.
$(B)/flags: FORCE
	@mkdir -p $(B)
	@echo '$(CC) $(CXX) $(FLAGS) $(SAN)' | cmp -s - $@ || echo '$(CC) $(CXX) $(FLAGS) $(SAN)' > $@

$(B)/obj/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(CC) $(FLAGS) $(SAN) -c $< -o $@

# The library runs inside other people's programs: never with a sanitizer's runtime.
$(B)/pic/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(CC) $(FLAGS) -fPIC -fvisibility=hidden -c $< -o $@

$(B)/libfastckpt.so: $(SHIM_OBJ) $(EXPORTS)
	$(CC) $(CFLAGS) -shared -Wl,--no-undefined -Wl,-z,defs -Wl,-z,relro -Wl,-z,now -Wl,-Bsymbolic-functions \
	    -Wl,-soname,libfastckpt.so $(EXPORTS:%=-Wl,--version-script=%) -Wl,--exclude-libs,ALL $(SHIM_OBJ) $(DEFLATE) -o $@

$(B)/fastckpt: $(CORE_OBJ)
	$(CC) $(CFLAGS) $(SAN) $(CORE_OBJ) $(URING) $(DEFLATE) -pthread -o $@

# An archive, so that a test pulls in only what it uses.
$(B)/core.a: $(filter-out $(B)/obj/core/main.o,$(CORE_OBJ)) $(PURE_OBJ)
	@rm -f $@
	ar rcs $@ $^

$(B)/unit/%: tests/unit/%.c $(B)/core.a $(B)/flags
	@mkdir -p $(@D)
	$(CC) $(FLAGS) $(SAN) -MF $@.d $< $(B)/core.a $(URING) $(DEFLATE) -lz -lcriterion -pthread -o $@

# On the simulated disk, which takes the place of io.
SIMDISK := $(patsubst %,$(B)/obj/tests/lib/%.o,simdisk simdisk_calls simdisk_io simdisk_cut)
$(B)/unit/test_crash $(B)/unit/test_crash_stripes: $(B)/unit/%: tests/unit/%.c $(SIMDISK) $(B)/core.a $(B)/flags
	@mkdir -p $(@D)
	$(CC) $(FLAGS) $(SAN) -MF $@.d $< $(SIMDISK) $(B)/core.a $(DEFLATE) -lcriterion -pthread -o $@

# A CUDA runtime without a GPU, for programs that load it in the place of NVIDIA's: everything that the real one
# exports, under its version. Never with a sanitizer's runtime.
SIMCUDA_OBJ := $(patsubst tests/lib/%.c,$(B)/simcuda/%.o,$(filter-out %_driver.c,$(wildcard tests/lib/simcuda*.c)))
$(B)/simcuda/%.o: tests/lib/%.c $(B)/flags
	@mkdir -p $(@D)
	$(CC) $(FLAGS) -fPIC -isystem $(CUDA) -c $< -o $@

$(B)/simcuda/libcudart.so.13: tests/lib/cudart-13.txt scripts/stubs $(SIMCUDA_OBJ)
	scripts/stubs $< libcudart.so.13 $@ $(SIMCUDA_OBJ)
	$(CC) -O1 -fPIC -shared -Wl,-Bsymbolic -Wl,-soname,libcudart.so.13 -Wl,--version-script=$@.map \
	    $@.c $(SIMCUDA_OBJ) -pthread -o $@

$(B)/simcuda/libcuda.so.1: tests/lib/cuda-driver-13.txt scripts/stubs $(B)/simcuda/simcuda_driver.o
	scripts/stubs $< - $@ $(B)/simcuda/simcuda_driver.o
	$(CC) -O1 -fPIC -shared -Wl,-soname,libcuda.so.1 -Wl,--version-script=$@.map \
	    $@.c $(B)/simcuda/simcuda_driver.o -o $@

# Victims are ordinary programs: nobody's flags but theirs.
$(B)/victims/rotate: tests/victims/rotate_check.c
$(B)/victims/%: tests/victims/%.c $(B)/flags
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra -D_GNU_SOURCE -MMD -MP -MF $@.d $(filter %.c,$^) -pthread -o $@

$(B)/victims/cuda_%: tests/victims/cuda_%.c $(B)/simcuda/libcudart.so.13 $(B)/flags
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -g -Wall -Wextra -D_GNU_SOURCE -isystem $(CUDA) -MMD -MP -MF $@.d $< \
	    $(B)/simcuda/libcudart.so.13 -pthread -o $@

$(B)/victims/%: tests/victims/%.cc $(B)/flags
	@mkdir -p $(@D)
	$(CXX) -O2 -g -Wall -Wextra -MMD -MP -MF $@.d $< -pthread -o $@

-include $(wildcard $(B)/simcuda/*.d)
-include $(CORE_OBJ:.o=.d) $(SHIM_OBJ:.o=.d) $(PURE_OBJ:.o=.d) $(UNIT:=.d) $(VICTIMS:=.d) $(SIMDISK:.o=.d)
