# Defines mezzo::torch: LibTorch, wherever it comes from. Used by mezzo's own build and
# by its installed package.
#
# Looked for in this order: Torch_DIR or CMAKE_PREFIX_PATH (your LibTorch or PyTorch), MEZZO_VENV
# (the project's .venv), then the python3 on the path.
set(MEZZO_VENV "${PROJECT_SOURCE_DIR}/.venv" CACHE PATH "The Python environment that brings LibTorch and the tests' programs")

# The folder of a Python package, by the first of these Pythons that has it. The package is not imported, which takes seconds.
# pip builds for the Python that it installs into. -E turns off its isolation, which lacks torch.
function(_mezzo_python_package name out)
  set(pythons ${ARGN})
  set(flags "")
  if(SKBUILD)
    set(pythons "${Python_EXECUTABLE}")
    set(flags -E)
  endif()
  foreach(python IN LISTS pythons)
    execute_process(
      COMMAND "${python}" ${flags} -c "from importlib.util import find_spec as f; print(f('${name}').submodule_search_locations[0])"
      OUTPUT_VARIABLE package OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
      set(${out} "${package}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

find_file(_mezzo_torch_config TorchConfig.cmake HINTS "${Torch_DIR}" ${CMAKE_PREFIX_PATH} $ENV{CMAKE_PREFIX_PATH}
  PATH_SUFFIXES share/cmake/Torch Torch NO_CACHE NO_DEFAULT_PATH)
if(NOT _mezzo_torch_config)
  _mezzo_python_package(torch _mezzo_torch_package "${MEZZO_VENV}/bin/python" python3)
  find_file(_mezzo_torch_config TorchConfig.cmake HINTS "${_mezzo_torch_package}/share/cmake"
    PATH_SUFFIXES Torch NO_CACHE NO_DEFAULT_PATH)
endif()
if(NOT _mezzo_torch_config)
  message(FATAL_ERROR "mezzo: LibTorch not found. Run scripts/setup.sh, or point CMAKE_PREFIX_PATH at a LibTorch, "
    "or at what `python3 -c 'import torch; print(torch.utils.cmake_prefix_path)'` prints. For pip, install torch first; "
    "uv also needs --no-build-isolation, and build --no-isolation.")
endif()
get_filename_component(MEZZO_TORCH_ROOT "${_mezzo_torch_config}/../../../.." ABSOLUTE)

# LibTorch's version without the patch, such as 2.13: a build with one minor version fits no other.
set(_mezzo_torch_version "${_mezzo_torch_config}")
cmake_path(REPLACE_FILENAME _mezzo_torch_version TorchConfigVersion.cmake)
file(STRINGS "${_mezzo_torch_version}" _mezzo_torch_version REGEX "PACKAGE_VERSION \"[0-9]")
string(REGEX MATCH "[0-9]+\\.[0-9]+" MEZZO_TORCH_VERSION "${_mezzo_torch_version}")

# Another folder of the build has found mezzo before. The variables above are of this folder.
if(TARGET mezzo::torch)
  return()
endif()

# LibTorch's own CMake package refuses a CUDA build if it does not find the exact toolkit. mezzo
# does not need the toolkit: libtorch.so loads its CUDA libraries at run time. So only the settings
# for headers are read from the package.
set(_mezzo_torch_targets "${MEZZO_TORCH_ROOT}/share/cmake/Caffe2/Caffe2Targets.cmake")
file(READ "${_mezzo_torch_targets}" _mezzo_torch_text)
if(NOT _mezzo_torch_text MATCHES "torch_cpu PROPERTIES[^)]*INTERFACE_COMPILE_DEFINITIONS \"([A-Z0-9_;]*)\"")
  message(FATAL_ERROR "mezzo: ${_mezzo_torch_targets} does not say what LibTorch was compiled with. mezzo needs LibTorch "
    "2.11 or newer, with its distributed part and as shared libraries, as PyTorch's wheels have it.")
endif()
add_library(mezzo::torch INTERFACE IMPORTED GLOBAL)
target_compile_definitions(mezzo::torch INTERFACE ${CMAKE_MATCH_1})
target_include_directories(mezzo::torch INTERFACE
  "${MEZZO_TORCH_ROOT}/include" "${MEZZO_TORCH_ROOT}/include/torch/csrc/api/include")
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  # LibTorch's libraries export parts of the C++ library that they were linked with, std::filesystem
  # among them. Calls of 2.11's parts by others crash. So the system's library comes first.
  target_link_libraries(mezzo::torch INTERFACE stdc++)
endif()
foreach(library IN ITEMS torch torch_cpu c10) # libtorch.so loads its CUDA libraries, if it has any
  target_link_libraries(mezzo::torch INTERFACE "${MEZZO_TORCH_ROOT}/lib/lib${library}${CMAKE_SHARED_LIBRARY_SUFFIX}")
endforeach()
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  # Operators register themselves when their library is loaded, whether a
  # symbol of it is used or not.
  target_link_options(mezzo::torch INTERFACE LINKER:--no-as-needed)
  if(EXISTS "${MEZZO_TORCH_ROOT}/lib/libtorch_cuda.so") # whose own libraries are found at run time
    target_link_options(mezzo::torch INTERFACE LINKER:--allow-shlib-undefined)
  endif()
endif()

# LibTorch's parallel_for is a template: in code compiled without OpenMP it runs on one thread. The
# flag alone, as LibTorch's own libgomp is loaded then.
find_package(OpenMP REQUIRED COMPONENTS CXX)
separate_arguments(_mezzo_openmp UNIX_COMMAND "${OpenMP_CXX_FLAGS}")
target_compile_options(mezzo::torch INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${_mezzo_openmp}>")
target_link_options(mezzo::torch INTERFACE "$<$<LINK_LANGUAGE:CXX>:${_mezzo_openmp}>")
