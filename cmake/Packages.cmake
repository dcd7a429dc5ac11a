# What CMake does not find, with the packages that provide it: one report for all of it. scripts/install-deps reads the same
# from missing_packages.txt in the build folder, one line "GROUP|NAME|apt|dnf|pacman|zypper" for each.

# name            apt                          dnf                pacman         zypper ("-": none known)
set(LS_PACKAGES
  "pkg-config    |pkg-config                  |pkgconf-pkg-config|pkgconf       |pkgconf-pkg-config"
  "zlib          |zlib1g-dev                  |zlib-devel        |zlib          |zlib-devel"
  "OpenBLAS      |libopenblas-openmp-dev      |openblas-devel    |openblas      |libopenblas_openmp-devel"
  "libsodium     |libsodium-dev               |libsodium-devel   |libsodium     |libsodium-devel"
  "libuv         |libuv1-dev                  |libuv-devel       |libuv         |libuv-devel"
  "jansson       |libjansson-dev              |jansson-devel     |jansson       |libjansson-devel"
  "xxHash        |libxxhash-dev               |xxhash-devel      |xxhash        |xxhash-devel"
  "hwloc         |libhwloc-dev                |hwloc-devel       |hwloc         |hwloc-devel"
  "cmocka        |libcmocka-dev               |libcmocka-devel   |cmocka        |libcmocka-devel"
  "oneDNN        |libdnnl-dev                 |onednn-devel      |onednn        |onednn-devel"
  "libpng        |libpng-dev                  |libpng-devel      |libpng        |libpng16-devel"
  "libjpeg       |libjpeg-dev                 |libjpeg-turbo-devel|libjpeg-turbo|libjpeg8-devel"
  "openmpi       |libopenmpi-dev openmpi-bin  |openmpi-devel     |openmpi       |openmpi-devel"
  "mpich         |libmpich-dev mpich          |mpich-devel       |mpich         |mpich-devel"
  "Gloo          |libgloo-dev                 |gloo-devel        |-             |gloo-devel"
  "HDF5          |libhdf5-dev                 |hdf5-devel        |hdf5          |hdf5-devel"
  "NetCDF        |libnetcdf-dev               |netcdf-devel      |netcdf        |netcdf-devel"
  "libtorch      |libtorch-dev                |python3-torch-devel|python-pytorch|-")

# ls_expect(NAME GROUP VARIABLE...): notes a dependency as missing unless all variables are true. GROUP is "needed" if Lockstep
# cannot be built without the dependency, "wanted" if the dependency is useful to everyone, or else the option of
# scripts/install-deps that asks for it.
function(ls_expect NAME GROUP)
  foreach(variable IN LISTS ARGN)
    if(NOT ${variable})
      set(rows ${LS_PACKAGES})
      list(FILTER rows INCLUDE REGEX "^${NAME} *[|]")
      string(REGEX REPLACE " *[|] *" "|" row "${rows}")
      set_property(GLOBAL APPEND PROPERTY LS_MISSING "${GROUP}|${row}")
      return()
    endif()
  endforeach()
endfunction()

# Writes the file, and stops if something needed is missing. Called twice: when what is needed has been looked for, and at
# the end.
function(ls_report_missing)
  get_property(missing GLOBAL PROPERTY LS_MISSING)
  string(REPLACE ";" "\n" lines "${missing}")
  file(WRITE ${PROJECT_BINARY_DIR}/missing_packages.txt "${lines}\n")
  list(FILTER missing INCLUDE REGEX "^needed")
  if(NOT missing)
    return()
  endif()
  set(names)
  foreach(row IN LISTS missing)
    string(REPLACE "|" ";" row "${row}")
    list(GET row 1 2 3 4 5 columns)
    list(POP_FRONT columns name apt dnf pacman zypper)
    list(APPEND names ${name})
    foreach(manager apt dnf pacman zypper)
      string(APPEND ${manager}_list " ${${manager}}")
    endforeach()
  endforeach()
  list(JOIN names ", " names)
  message(FATAL_ERROR "Lockstep needs what CMake did not find: ${names}. Install it with one of\n"
    "  apt install${apt_list}\n  dnf install${dnf_list}\n  pacman -S${pacman_list}\n  zypper install${zypper_list}\n"
    "If it is installed in a folder of its own, name the folder in CMAKE_PREFIX_PATH.")
endfunction()
