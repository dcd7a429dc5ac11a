# Backend nccl, on libnccl and CUDA's runtime. It is C code only, so no nvcc is needed.
set(LS_NCCL auto CACHE STRING
    "Whether to build backend nccl: auto (where libnccl and CUDA's runtime are found), on or off")
set_property(CACHE LS_NCCL PROPERTY STRINGS auto on off)
if(NOT LS_NCCL MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "LS_NCCL is ${LS_NCCL}, must be auto, on or off")
endif()

if(NOT LS_NCCL STREQUAL off AND NOT LS_SANITIZE MATCHES thread)
  if(NOT CUDAToolkit_FOUND)
    find_package(CUDAToolkit 12 QUIET)
  endif()
  find_path(LS_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(LS_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(TARGET CUDA::cudart AND LS_NCCL_INCLUDE AND LS_NCCL_LIBRARY)
    file(GLOB LS_NCCL_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/comm/backend/nccl/*.c
                                                ${PROJECT_SOURCE_DIR}/src/comm/backend/module/collectives.c)
    ls_add_backend_module(nccl SOURCES ${LS_NCCL_SOURCES} LIBRARIES ${LS_NCCL_LIBRARY} CUDA::cudart)
    target_include_directories(lockstep_module_nccl SYSTEM PRIVATE ${LS_NCCL_INCLUDE} ${CUDAToolkit_INCLUDE_DIRS})
  elseif(LS_NCCL STREQUAL on)
    message(FATAL_ERROR "LS_NCCL is on, but libnccl (nccl.h) or CUDA's runtime was not found")
  endif()
endif()
