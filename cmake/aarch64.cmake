# Cross-builds for 64-bit ARM (preset aarch64): the compilers of Debian's gcc-aarch64-linux-gnu, the libraries in
# LS_SYSROOT, and QEMU's user mode to run what was built. scripts/test-aarch64 fills LS_SYSROOT.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
get_filename_component(LS_SOURCE_ROOT ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)
set(LS_SYSROOT ${LS_SOURCE_ROOT}/build-aarch64/sysroot CACHE PATH "Folder with libraries for aarch64")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES LS_SYSROOT)

set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_SYSROOT ${LS_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${LS_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${LS_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${LS_SYSROOT}/usr/share/pkgconfig)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${LS_SYSROOT})
