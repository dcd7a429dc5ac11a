# The Fortran module lockstep, if there is a Fortran compiler: a small static library, a .mod file and a pkg-config file.
# Its source is installed too, for other Fortran compilers.
set(LS_FORTRAN auto CACHE STRING "Whether to build the Fortran module: auto (if there is a compiler), on or off")
set_property(CACHE LS_FORTRAN PROPERTY STRINGS auto on off)
if(NOT LS_FORTRAN MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "LS_FORTRAN is ${LS_FORTRAN}, must be auto, on or off")
endif()

set(LS_FORTRAN_SOURCE ${PROJECT_SOURCE_DIR}/bindings/fortran/lockstep.f90)
install(FILES ${LS_FORTRAN_SOURCE} DESTINATION ${CMAKE_INSTALL_DATADIR}/lockstep COMPONENT development)
# Installs the complete programs that the Fortran and MPI guides link to.
install(FILES examples/heat_mpi.c examples/fortran/heat.f90 examples/fortran/perceptron.f90
        DESTINATION ${CMAKE_INSTALL_DATADIR}/lockstep/examples COMPONENT development)
if(LS_FORTRAN STREQUAL off)
  return()
endif()
include(CheckLanguage)
check_language(Fortran)
if(NOT CMAKE_Fortran_COMPILER)
  if(LS_FORTRAN STREQUAL on)
    message(FATAL_ERROR "LS_FORTRAN is on, but no Fortran compiler was found: install gfortran")
  endif()
  return()
endif()
enable_language(Fortran)

set(LS_FORTRAN_MODULES ${CMAKE_INSTALL_LIBDIR}/lockstep/fortran)
add_library(lockstep_fortran STATIC ${LS_FORTRAN_SOURCE})
target_link_libraries(lockstep_fortran PUBLIC lockstep)
target_compile_options(lockstep_fortran PRIVATE $<$<BOOL:${LS_WERROR}>:-Werror>
  $<$<Fortran_COMPILER_ID:GNU>:-std=f2008 -pedantic -Wall -Wextra>)
add_dependencies(lockstep_modules lockstep_fortran) # together, they are what is installed besides the library
target_include_directories(lockstep_fortran PUBLIC $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/fortran>
                                                   $<INSTALL_INTERFACE:${LS_FORTRAN_MODULES}>)
set_target_properties(lockstep_fortran PROPERTIES OUTPUT_NAME lockstep-fortran EXPORT_NAME fortran
                      Fortran_MODULE_DIRECTORY ${PROJECT_BINARY_DIR}/fortran
                      ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
install(TARGETS lockstep_fortran EXPORT lockstepTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        COMPONENT development)
install(FILES ${PROJECT_BINARY_DIR}/fortran/lockstep.mod DESTINATION ${LS_FORTRAN_MODULES}
        COMPONENT development)
