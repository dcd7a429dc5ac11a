# Module cuda: NVIDIA GPUs, with CUDA 12 or newer, cuBLAS and cuDNN 9. The module is not built without them.
set(LS_CUDA auto CACHE STRING "Whether to build module cuda: auto (where CUDA, cuBLAS and cuDNN are found), on or off")
set_property(CACHE LS_CUDA PROPERTY STRINGS auto on off)
if(NOT LS_CUDA MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "LS_CUDA is ${LS_CUDA}, must be auto, on or off")
endif()

if(NOT LS_CUDA STREQUAL off AND NOT LS_SANITIZE) # the sanitizers check its kernels in tests/shadow
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # Machine code for Ampere and Hopper, and code that newer GPUs translate.
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90 CACHE STRING "GPUs to build for")
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit 12)
    find_path(LS_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_library(LS_CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
  endif()
  if(CUDAToolkit_FOUND AND LS_CUDNN_INCLUDE AND LS_CUDNN_LIBRARY)
    file(GLOB LS_CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.c ${CMAKE_CURRENT_LIST_DIR}/*.cu)
    ls_add_module(cuda SOURCES ${LS_CUDA_SOURCES} ${PROJECT_SOURCE_DIR}/src/tensor/device/cpu/loop_plan.c
                  LIBRARIES CUDA::cudart CUDA::cublasLt ${LS_CUDNN_LIBRARY} Threads::Threads)
    target_include_directories(lockstep_module_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS} ${LS_CUDNN_INCLUDE})
    target_compile_definitions(lockstep_module_cuda PRIVATE LS_WITH_CUDA)
    target_compile_options(lockstep_module_cuda PRIVATE
      $<$<COMPILE_LANGUAGE:CUDA>:--extended-lambda -Xcompiler=-Wall,-Wextra,-fvisibility=hidden>)
    set_target_properties(lockstep_module_cuda PROPERTIES CUDA_STANDARD 17 CUDA_RUNTIME_LIBRARY Shared)
  elseif(LS_CUDA STREQUAL on)
    message(FATAL_ERROR "LS_CUDA is on, but CUDA, cuBLAS or cuDNN was not found")
  endif()
endif()
