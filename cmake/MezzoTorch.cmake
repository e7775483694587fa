# Defines mezzo::torch: LibTorch, wherever it comes from. Used by mezzo's own build and by its installed package.
#
# Looked for in this order: Torch_DIR or CMAKE_PREFIX_PATH (a LibTorch or PyTorch of your own), the project's .venv,
# then the python3 on the path.
include_guard(GLOBAL)

function(_mezzo_torch_prefix_from_python out)
  foreach(python IN ITEMS "${PROJECT_SOURCE_DIR}/.venv/bin/python" python3)
    execute_process(
      COMMAND "${python}" -c "import torch; print(torch.utils.cmake_prefix_path)"
      OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
      set(${out} "${prefix}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

find_file(_mezzo_torch_config TorchConfig.cmake HINTS "${Torch_DIR}" ${CMAKE_PREFIX_PATH} $ENV{CMAKE_PREFIX_PATH}
  PATH_SUFFIXES share/cmake/Torch Torch NO_CACHE NO_DEFAULT_PATH)
if(NOT _mezzo_torch_config)
  _mezzo_torch_prefix_from_python(_mezzo_torch_prefix)
  find_file(_mezzo_torch_config TorchConfig.cmake HINTS "${_mezzo_torch_prefix}"
    PATH_SUFFIXES Torch NO_CACHE NO_DEFAULT_PATH)
endif()
if(NOT _mezzo_torch_config)
  message(FATAL_ERROR "mezzo: LibTorch not found. Run scripts/setup.sh, or point CMAKE_PREFIX_PATH at a LibTorch, "
    "or at what `python3 -c 'import torch; print(torch.utils.cmake_prefix_path)'` prints.")
endif()
get_filename_component(MEZZO_TORCH_ROOT "${_mezzo_torch_config}/../../../.." ABSOLUTE)

add_library(mezzo::torch INTERFACE IMPORTED GLOBAL)
find_package(CUDAToolkit QUIET)
if(EXISTS "${MEZZO_TORCH_ROOT}/lib/libtorch_cuda.so" AND NOT CUDAToolkit_FOUND)
  # A CUDA build of torch on a machine without the CUDA toolkit: its own CMake package would refuse. mezzo needs only the
  # libraries below; libtorch.so brings the CUDA ones in at run time.
  set(_mezzo_torch_lib "${MEZZO_TORCH_ROOT}/lib")
  target_include_directories(mezzo::torch INTERFACE
    "${MEZZO_TORCH_ROOT}/include" "${MEZZO_TORCH_ROOT}/include/torch/csrc/api/include")
  target_link_libraries(mezzo::torch INTERFACE -Wl,--no-as-needed "${_mezzo_torch_lib}/libtorch.so"
    "${_mezzo_torch_lib}/libtorch_cuda.so" "${_mezzo_torch_lib}/libc10_cuda.so" -Wl,--as-needed
    "${_mezzo_torch_lib}/libtorch_cpu.so" "${_mezzo_torch_lib}/libc10.so")
  target_link_options(mezzo::torch INTERFACE "-Wl,-rpath,${_mezzo_torch_lib}" "-Wl,--allow-shlib-undefined")
else()
  get_filename_component(_mezzo_torch_dir "${_mezzo_torch_config}" DIRECTORY)
  find_package(Torch REQUIRED CONFIG PATHS "${_mezzo_torch_dir}" NO_DEFAULT_PATH)
  target_link_libraries(mezzo::torch INTERFACE ${TORCH_LIBRARIES})
endif()

# LibTorch's parallel_for is a template: in code compiled without OpenMP it runs on one thread.
find_package(OpenMP REQUIRED COMPONENTS CXX)
target_link_libraries(mezzo::torch INTERFACE OpenMP::OpenMP_CXX)
