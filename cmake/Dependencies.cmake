# What the core library and the command link, each with the job it does. scripts/install-deps installs them on Debian.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)                                   # IDX files come gzipped, .npz is ZIP; pictures for TensorBoard are PNG
# Headers only: src/tensor/device/cpu/libraries.c opens it when the first large matrix product comes.
find_path(LS_CBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas x86_64-linux-gnu/openblas-openmp
          aarch64-linux-gnu/openblas-openmp REQUIRED)         # OpenBLAS: matrix products in f64
# Optional, and opened likewise, by src/formats/png.c and jpeg.c: pictures as data.
find_path(LS_PNG_INCLUDE png.h)
find_path(LS_JPEG_INCLUDE jpeglib.h)
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)  # HMAC and keys
pkg_check_modules(UV REQUIRED IMPORTED_TARGET libuv)          # the launcher
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)   # safetensors headers and traces, as they are written
find_path(LS_XXHASH_INCLUDE xxhash.h REQUIRED)                # headers only: checksums of checkpoints
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)       # cores, for the launcher

add_library(lockstep_dependencies INTERFACE)
target_link_libraries(lockstep_dependencies INTERFACE Threads::Threads ZLIB::ZLIB PkgConfig::SODIUM
                      PkgConfig::JANSSON ${CMAKE_DL_LIBS} m)
target_include_directories(lockstep_dependencies SYSTEM INTERFACE ${LS_CBLAS_INCLUDE} ${LS_XXHASH_INCLUDE})

foreach(name PNG JPEG)
  if(LS_${name}_INCLUDE)
    string(TOLOWER ${name} file)
    set_source_files_properties(src/formats/${file}.c PROPERTIES COMPILE_DEFINITIONS LS_HAVE_${name})
    target_include_directories(lockstep_dependencies SYSTEM INTERFACE ${LS_${name}_INCLUDE})
  endif()
endforeach()

add_library(lockstep_cli_dependencies INTERFACE)
target_link_libraries(lockstep_cli_dependencies INTERFACE PkgConfig::UV PkgConfig::HWLOC)
