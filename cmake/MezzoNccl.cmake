# Finds the headers with which c10d shows its NCCL backend, and sets MEZZO_NCCL_INCLUDE_DIRS;
# empty for a LibTorch without CUDA, and, with a line that says so, where headers are missing.
# NCCL itself is in LibTorch.
#
# PyTorch's wheel brings most of them. It leaves out crt/ and nv/, which the packages
# nvidia-cuda-crt and nvidia-cuda-cccl add (scripts/setup.sh installs them), or a CUDA
# toolkit of the same version.
set(MEZZO_NCCL_INCLUDE_DIRS)
if(NOT EXISTS "${MEZZO_TORCH_ROOT}/lib/libtorch_cuda.so")
  return()
endif()

# Not by find_package(CUDAToolkit): in CMake 3.25 it ends in an error if it finds a toolkit of CUDA
# 13, and its checks are not needed. Its settings, the toolkit's place or that none is wanted, also
# hold here.
set(_mezzo_toolkit)
if(NOT CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit)
  find_program(_mezzo_nvcc nvcc NO_CACHE)
  get_filename_component(_mezzo_nvcc_dir "${_mezzo_nvcc}" DIRECTORY)
  find_path(_mezzo_toolkit cuda_runtime.h NO_CACHE NO_DEFAULT_PATH PATHS
    "${CUDAToolkit_ROOT}/include" "$ENV{CUDAToolkit_ROOT}/include" "$ENV{CUDA_HOME}/include" "$ENV{CUDA_PATH}/include"
    "${_mezzo_nvcc_dir}/../include" /usr/local/cuda/include)
endif()
find_path(NCCL_INCLUDE_DIR nccl.h HINTS "${MEZZO_TORCH_ROOT}/../nvidia/nccl/include" NO_CACHE)
file(GLOB _mezzo_cuda_dirs "${MEZZO_TORCH_ROOT}/../nvidia/cu*/include") # they fit the libraries, so they come first
if(_mezzo_toolkit)
  list(APPEND _mezzo_cuda_dirs "${_mezzo_toolkit}")
endif()
if(NCCL_INCLUDE_DIR)
  list(APPEND _mezzo_cuda_dirs "${NCCL_INCLUDE_DIR}")
endif()

set(_mezzo_missing)
set(_mezzo_source)
foreach(header IN ITEMS cuda_runtime.h crt/host_config.h nv/target cublas_v2.h cusolverDn.h cusparse.h nccl.h)
  find_path(_mezzo_header_dir "${header}" PATHS ${_mezzo_cuda_dirs} NO_CACHE)
  if(NOT _mezzo_header_dir)
    list(APPEND _mezzo_missing "${header}")
  endif()
  unset(_mezzo_header_dir)
  string(APPEND _mezzo_source "#include <${header}>\n")
endforeach()
if(_mezzo_missing)
  list(JOIN _mezzo_missing ", " _mezzo_missing)
  set(_mezzo_reason "${_mezzo_missing} not found")
else()
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_INCLUDES ${_mezzo_cuda_dirs})
  set(CMAKE_REQUIRED_QUIET ON)
  unset(MEZZO_NCCL_HEADERS_COMPILE CACHE) # others may have been installed since
  check_cxx_source_compiles("${_mezzo_source}int main() {}" MEZZO_NCCL_HEADERS_COMPILE)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_QUIET)
  set(_mezzo_reason "the headers in ${_mezzo_cuda_dirs} do not compile together")
endif()
if(MEZZO_NCCL_HEADERS_COMPILE AND NOT _mezzo_missing AND NOT MEZZO_HAS_CUDA)
  message(STATUS "mezzo: without NCCL, so ranks on GPUs cannot talk to each other: libmezzo_cuda.so, which calls it, is not built without "
    "kernels for GPUs")
elseif(MEZZO_NCCL_HEADERS_COMPILE AND NOT _mezzo_missing)
  set(MEZZO_NCCL_INCLUDE_DIRS ${_mezzo_cuda_dirs})
  message(STATUS "mezzo: with NCCL")
else()
  message(STATUS "mezzo: without NCCL, so ranks on GPUs cannot talk to each other: ${_mezzo_reason}. "
    "For the .venv's torch, scripts/setup.sh installs these headers; for a LibTorch zip, a CUDA toolkit and libnccl-dev have them.")
endif()
