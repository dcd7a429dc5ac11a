# Module onednn: convolutions and large matrix products by oneDNN (Debian: libdnnl-dev), version 2 or 3. Without it the
# CPU's own convolution and OpenBLAS do that work.
set(LS_ONEDNN auto CACHE STRING "Whether to build module onednn: auto (where oneDNN is found), on or off")
set_property(CACHE LS_ONEDNN PROPERTY STRINGS auto on off)
if(NOT LS_ONEDNN MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "LS_ONEDNN is ${LS_ONEDNN}, must be auto, on or off")
endif()

if(NOT LS_ONEDNN STREQUAL off)
  find_path(LS_ONEDNN_INCLUDE oneapi/dnnl/dnnl.h)
  find_library(LS_ONEDNN_LIBRARY dnnl)
  ls_expect(oneDNN wanted LS_ONEDNN_INCLUDE LS_ONEDNN_LIBRARY)
  if(LS_ONEDNN_INCLUDE AND LS_ONEDNN_LIBRARY)
    file(GLOB LS_ONEDNN_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.c)
    ls_add_module(onednn SOURCES ${LS_ONEDNN_SOURCES} LIBRARIES ${LS_ONEDNN_LIBRARY} ${CMAKE_DL_LIBS})
    target_include_directories(lockstep_module_onednn SYSTEM PRIVATE ${LS_ONEDNN_INCLUDE})
    # Debian's oneDNN uses gcc's OpenMP. With another compiler's OpenMP, there would be two sets of threads, so
    # convolutions and products then run on one thread.
    # The thread sanitizer does not understand the synchronization of OpenMP's threads.
    if(CMAKE_C_COMPILER_ID STREQUAL GNU AND NOT LS_SANITIZE MATCHES thread)
      target_compile_options(lockstep_module_onednn PRIVATE -fopenmp)
      target_link_options(lockstep_module_onednn PRIVATE -fopenmp)
    endif()
    # Programs that link the core open the module from the build tree.
    add_dependencies(lockstep lockstep_module_onednn)
    add_dependencies(lockstep_static lockstep_module_onednn)
  elseif(LS_ONEDNN STREQUAL on)
    message(FATAL_ERROR "LS_ONEDNN is on, but oneDNN was not found (Debian: libdnnl-dev)")
  else()
    message(WARNING "oneDNN was not found (Debian: libdnnl-dev): convolutions will be slow")
  endif()
endif()
