# What the core library and the command link, each with the job it does. cmake/Packages.cmake names the packages.
include(cmake/Packages.cmake)
find_package(PkgConfig)
find_package(Threads REQUIRED)
find_package(ZLIB)                                     # IDX files come gzipped, .npz is ZIP; pictures for TensorBoard are PNG
# OpenBLAS: matrix products in f64. Headers only: src/tensor/device/cpu/libraries.c opens the library at the first large
# product. openblas_config.h stands next to OpenBLAS's cblas.h; the reference BLAS has a cblas.h, too, with other types.
find_path(LS_OPENBLAS_INCLUDE openblas_config.h PATH_SUFFIXES openblas x86_64-linux-gnu/openblas-openmp
          aarch64-linux-gnu/openblas-openmp)
# Optional, opened in the same way by src/formats/png.c and jpeg.c: pictures as data.
find_path(LS_PNG_INCLUDE png.h)
find_path(LS_JPEG_INCLUDE jpeglib.h)
find_path(LS_XXHASH_INCLUDE xxhash.h)                  # headers only: checksums of checkpoints
ls_expect(zlib needed ZLIB_FOUND)
ls_expect(OpenBLAS needed LS_OPENBLAS_INCLUDE)
ls_expect(xxHash needed LS_XXHASH_INCLUDE)
ls_expect(libpng wanted LS_PNG_INCLUDE)
ls_expect(libjpeg wanted LS_JPEG_INCLUDE)
ls_expect(pkg-config needed PKG_CONFIG_FOUND)
if(PKG_CONFIG_FOUND)
  pkg_check_modules(SODIUM IMPORTED_TARGET libsodium)  # HMAC and keys
  pkg_check_modules(UV IMPORTED_TARGET libuv)          # the launcher
  pkg_check_modules(JANSSON IMPORTED_TARGET jansson)   # safetensors headers and traces, as they are written
  pkg_check_modules(HWLOC IMPORTED_TARGET hwloc)       # cores, for the launcher
  ls_expect(libsodium needed SODIUM_FOUND)
  ls_expect(libuv needed UV_FOUND)
  ls_expect(jansson needed JANSSON_FOUND)
  ls_expect(hwloc needed HWLOC_FOUND)
endif()
if(LS_BUILD_TESTS)
  find_path(CMOCKA_INCLUDE cmocka.h)
  find_library(CMOCKA_LIBRARY cmocka)
  ls_expect(cmocka needed CMOCKA_INCLUDE CMOCKA_LIBRARY)
endif()
ls_report_missing()

add_library(lockstep_dependencies INTERFACE)
target_link_libraries(lockstep_dependencies INTERFACE Threads::Threads ZLIB::ZLIB PkgConfig::SODIUM
                      PkgConfig::JANSSON ${CMAKE_DL_LIBS} m)
target_include_directories(lockstep_dependencies SYSTEM INTERFACE ${LS_OPENBLAS_INCLUDE} ${LS_XXHASH_INCLUDE})

foreach(name PNG JPEG)
  if(LS_${name}_INCLUDE)
    string(TOLOWER ${name} file)
    set_source_files_properties(src/formats/${file}.c PROPERTIES COMPILE_DEFINITIONS LS_HAVE_${name})
    target_include_directories(lockstep_dependencies SYSTEM INTERFACE ${LS_${name}_INCLUDE})
  endif()
endforeach()

add_library(lockstep_cli_dependencies INTERFACE)
target_link_libraries(lockstep_cli_dependencies INTERFACE PkgConfig::UV PkgConfig::HWLOC)
