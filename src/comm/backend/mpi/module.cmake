# Backend mpi: one module for each MPI library, since their binary interfaces differ. src/comm/module.c picks the one
# whose launcher started the process. scripts/install-deps --mpi installs both libraries on Debian.
set(LS_MPI auto CACHE STRING "MPI libraries to build a backend for: auto (all that are found), openmpi, mpich or off")
set_property(CACHE LS_MPI PROPERTY STRINGS auto openmpi mpich off)
if(NOT LS_MPI MATCHES "^(auto|openmpi|mpich|off)$")
  message(FATAL_ERROR "LS_MPI is ${LS_MPI}, must be auto, openmpi, mpich or off")
endif()

file(GLOB LS_MPI_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/comm/backend/mpi/*.c
                                           ${PROJECT_SOURCE_DIR}/src/comm/transport/mpi/*.c
                                           ${PROJECT_SOURCE_DIR}/src/comm/transport/place.c)
foreach(flavour openmpi mpich)
  if(LS_MPI STREQUAL auto)
    set(need QUIET)
  elseif(LS_MPI STREQUAL flavour)
    set(need REQUIRED)
  else()
    continue()
  endif()
  string(REPLACE openmpi ompi-c package ${flavour})
  pkg_check_modules(LS_MPI_${flavour} ${need} IMPORTED_TARGET ${package})
  ls_expect(${flavour} mpi LS_MPI_${flavour}_FOUND)
  if(LS_MPI_${flavour}_FOUND)
    ls_add_backend_module(mpi_${flavour} SOURCES ${LS_MPI_SOURCES} ${PROJECT_SOURCE_DIR}/src/comm/store_roster.c
                          LIBRARIES PkgConfig::LS_MPI_${flavour})
    if(LS_NO_LTO) # like the library itself, see CMakeLists.txt
      target_compile_options(lockstep_module_mpi_${flavour} PRIVATE -flto=auto)
      target_link_options(lockstep_module_mpi_${flavour} PRIVATE -flto=auto)
    endif()
  endif()
endforeach()
