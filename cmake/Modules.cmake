# What the core opens on demand: src/base/module_file.h says where it looks.
#
#   ls_add_module(NAME SOURCES a.c b.c LIBRARIES target...)
#
# builds sources into ${PROJECT_BINARY_DIR}/lib/lockstep-NAME.so, where programs from the build tree find it, and
# installs it into LIBDIR/lockstep. The caller has found the libraries that the module needs: without them, there is no
# module.
add_custom_target(lockstep_modules)
function(ls_add_module NAME)
  cmake_parse_arguments(MODULE "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(lockstep_module_${NAME} MODULE ${MODULE_SOURCES})
  target_link_libraries(lockstep_module_${NAME} PRIVATE lockstep_options ${MODULE_LIBRARIES})
  target_include_directories(lockstep_module_${NAME} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  set_target_properties(lockstep_module_${NAME} PROPERTIES PREFIX "" OUTPUT_NAME lockstep-${NAME}
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  # The core exports no internal symbols, so a symbol that is missing at link time is missing at run time too. Exception:
  # the program provides the sanitizers' functions.
  if(NOT LS_SANITIZE)
    target_link_options(lockstep_module_${NAME} PRIVATE -Wl,-z,defs)
  endif()
  add_dependencies(lockstep_modules lockstep_module_${NAME})
  install(TARGETS lockstep_module_${NAME} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/lockstep
    COMPONENT ${NAME})
endfunction()

# The same for a backend, as src/comm/module.h has it.
set(LS_BACKEND_MODULE_SOURCES comm/backend/module/core.c comm/backend/module/opening.c comm/operation.c comm/pieces.c
    base/wait.c)
list(TRANSFORM LS_BACKEND_MODULE_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/src/)
function(ls_add_backend_module NAME)
  cmake_parse_arguments(MODULE "" "" "SOURCES;LIBRARIES" ${ARGN})
  ls_add_module(${NAME} SOURCES ${MODULE_SOURCES} ${LS_BACKEND_MODULE_SOURCES} LIBRARIES ${MODULE_LIBRARIES})
endfunction()

# A module's sources are the files of its folder.
foreach(folder comm/backend/mpi comm/backend/gloo comm/backend/nccl tensor/device/onednn tensor/device/cuda
    formats/hdf5 formats/netcdf)
  if(EXISTS ${PROJECT_SOURCE_DIR}/src/${folder}/module.cmake)
    include(${PROJECT_SOURCE_DIR}/src/${folder}/module.cmake)
  endif()
endforeach()
