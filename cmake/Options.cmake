# How Lockstep's own code is compiled. Everything of ours links lockstep_options.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

option(LS_BUILD_TESTS "Build the tests" OFF)
option(LS_BUILD_BENCH "Build the benchmarks" OFF)
option(LS_WERROR "Warnings are errors (for our own development)" OFF)
option(LS_DEB "Prepare Debian packages for cpack (preset package)" OFF)
option(LS_LTO "Optimise the library as a whole (gcc, Release; a minute of linking)" ON)
set(LS_SANITIZE "" CACHE STRING "Sanitizers: address,undefined or thread")

add_library(lockstep_options INTERFACE)
set_property(GLOBAL PROPERTY USE_FOLDERS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_C_FLAGS_RELEASE "-O3")
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

target_compile_definitions(lockstep_options INTERFACE _GNU_SOURCE)
set(LS_C_OPTIONS
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion $<$<BOOL:${LS_WERROR}>:-Werror>
  # Loops vectorise only when neither errno nor floating-point traps are watched; we watch neither.
  -fno-math-errno -fno-trapping-math -fno-semantic-interposition)
# nvcc does not accept them.
target_compile_options(lockstep_options INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${LS_C_OPTIONS}>")
# gcc copies and clears structs of more than a few words with `rep`, which takes as long as copying 500 bytes.
include(CheckCCompilerFlag)
set(LS_NO_REP -mmemcpy-strategy=unrolled_loop:256:noalign,libcall:-1:noalign
              -mmemset-strategy=unrolled_loop:256:noalign,libcall:-1:noalign)
check_c_compiler_flag("${LS_NO_REP}" LS_HAS_NO_REP)
if(LS_HAS_NO_REP)
  target_compile_options(lockstep_options INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${LS_NO_REP}>")
endif()
if(LS_SANITIZE)
  target_compile_options(lockstep_options INTERFACE -fsanitize=${LS_SANITIZE} -fno-omit-frame-pointer -g1)
  target_link_options(lockstep_options INTERFACE -fsanitize=${LS_SANITIZE})
  target_compile_definitions(lockstep_options INTERFACE LS_SANITIZED)
endif()
